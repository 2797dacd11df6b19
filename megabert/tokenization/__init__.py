"""Tokenizers of BERT's family: train, load, save in Hugging Face form, encode. The one home of `tokenizers`."""

from megabert.tokenization.alphabet import compose, has_hangul
from megabert.tokenization.backend import CONTINUATION
from megabert.tokenization.huggingface import load_tokenizer, save_huggingface
from megabert.tokenization.kinds import Pieces
from megabert.tokenization.special_tokens import SpecialIds
from megabert.tokenization.tokenizer import Tokenizer
from megabert.tokenization.training import DEFAULT_VOCAB_SIZE, train_byte_bpe, train_wordpiece

__all__ = [
    "CONTINUATION",
    "DEFAULT_VOCAB_SIZE",
    "Pieces",
    "SpecialIds",
    "Tokenizer",
    "compose",
    "has_hangul",
    "load_tokenizer",
    "save_huggingface",
    "train_byte_bpe",
    "train_wordpiece",
]
