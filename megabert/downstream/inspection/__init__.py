"""A look at a model: guesses for [MASK], its loss on a text, attention, nearest embeddings, vectors of texts."""
