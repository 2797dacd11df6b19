"""WordPiece tokenizers: train, load, save in Hugging Face form, encode. The one home of `tokenizers`."""

from megabert.tokenization.huggingface import load_tokenizer, save_huggingface
from megabert.tokenization.special_tokens import SpecialIds
from megabert.tokenization.tokenizer import Tokenizer

__all__ = ["SpecialIds", "Tokenizer", "load_tokenizer", "save_huggingface"]
