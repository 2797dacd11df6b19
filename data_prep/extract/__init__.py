"""Reading sources: files are cut into chunks at document borders, chunks into documents."""

from data_prep.extract.chunks import InputChunk, InputFile, find_files, plan_chunks

__all__ = ["InputChunk", "InputFile", "find_files", "plan_chunks"]
