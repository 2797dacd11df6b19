"""Reading the input: which files, the chunks that they are cut into, and the documents of a chunk."""

from data_prep.extract.chunks import plan_chunks
from data_prep.extract.inputs import InputChunk, InputFile, find_files

__all__ = ["InputChunk", "InputFile", "find_files", "plan_chunks"]
