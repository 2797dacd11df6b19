"""What all rooms stand on: errors, files, keyed randomness, compiled loops, tables of text."""
