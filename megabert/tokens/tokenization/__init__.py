"""Tokenizers of BERT's family: train, load, save in Hugging Face form, encode. The one home of `tokenizers`."""

from megabert.tokens.tokenization.backend import Pieces
from megabert.tokens.tokenization.composition import compose, has_hangul
from megabert.tokens.tokenization.huggingface import load_tokenizer, save_huggingface, word_level_tokenizer
from megabert.tokens.tokenization.special_pieces import SpecialIds
from megabert.tokens.tokenization.tokenizer import Tokenizer
from megabert.tokens.tokenization.training import (
    DEFAULT_VOCAB_SIZE,
    MAX_TRAINED_WORD,
    CountedWords,
    Notify,
    add_up_counts,
    byte_bpe_spans,
    train_byte_bpe,
    train_byte_bpe_on,
    train_wordpiece,
    train_wordpiece_on,
    without_endless_words,
    wordpiece_spans,
)
from megabert.tokens.tokenization.unigram_training import train_unigram, train_unigram_on, unigram_spans
