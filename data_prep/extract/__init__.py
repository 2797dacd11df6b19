"""Reading sources: files are cut into chunks at document borders, chunks into documents."""

from data_prep.extract.chunks import plan_chunks
from data_prep.extract.inputs import InputChunk, InputFile, find_files

__all__ = ["InputChunk", "InputFile", "find_files", "plan_chunks"]
