"""What a model has learned: guesses for [MASK], attention, nearest embeddings, vectors for a file of texts."""
