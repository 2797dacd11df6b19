"""A model's tokenizer, held against the model."""

from pathlib import Path

from megabert.config.model import ModelConfig
from megabert.errors import DataError
from megabert.tokenization import Tokenizer, load_tokenizer


def fitting_tokenizer(folder: Path, model: ModelConfig) -> Tokenizer:
    """Load a tokenizer.

    Raises:
        DataError: It has more or fewer pieces than the model has embeddings.
    """
    tokenizer = load_tokenizer(folder)
    if not model.fits_pieces(tokenizer.vocab_size):
        raise DataError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size:,} pieces, the model {model.vocab_size:,}. Put the "
            "tokenizer's files there that the model was trained with."
        )
    return tokenizer
