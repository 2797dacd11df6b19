"""Tokenizers of BERT's family: train, load, save in Hugging Face form, encode. The one home of `tokenizers`."""

from megabert.tokens.tokenization.composition import compose, has_hangul
from megabert.tokens.tokenization.huggingface import load_tokenizer, save_huggingface, word_level_tokenizer
from megabert.tokens.tokenization.special_pieces import SpecialIds
from megabert.tokens.tokenization.tokenizer import Tokenizer
from megabert.tokens.tokenization.tokenizer_kinds import Pieces
from megabert.tokens.tokenization.training import train_byte_bpe, train_wordpiece
from megabert.tokens.tokenization.unigram_training import train_unigram, train_unigram_on, unigram_spans
