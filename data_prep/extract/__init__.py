"""Reading the input: which files, the chunks that they are cut into, and the documents of a chunk."""
