"""Tokenizers of BERT's family: train, load, save in Hugging Face form, encode. The one home of `tokenizers`."""

from megabert.tokenization.backend import Pieces, SpecialIds
from megabert.tokenization.huggingface import load_tokenizer, save_huggingface
from megabert.tokenization.tokenizer import Tokenizer
from megabert.tokenization.training import (
    DEFAULT_VOCAB_SIZE,
    MAX_TRAINED_WORD,
    TooManyWords,
    compose,
    has_hangul,
    train_byte_bpe,
    train_wordpiece,
    without_endless_words,
)

__all__ = [
    "DEFAULT_VOCAB_SIZE",
    "MAX_TRAINED_WORD",
    "Pieces",
    "SpecialIds",
    "Tokenizer",
    "TooManyWords",
    "compose",
    "has_hangul",
    "load_tokenizer",
    "save_huggingface",
    "train_byte_bpe",
    "train_wordpiece",
    "without_endless_words",
]
