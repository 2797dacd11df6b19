"""Copies of sentences for pseudo-log-likelihoods: which pieces they hide, and how long sentences are cut."""

import numpy as np
import pytest
import transformers
from support.parity_models import make_tokenizer

from megabert.tokens.tokenization import load_tokenizer, save_huggingface
from megabert.tokens.tokenization.training import train_byte_bpe
from megabert.training.probes.masked_copies import copy_batches, encode_sentences

TEXTS = ["ab c", "", "a b abc.", "c"]


@pytest.fixture
def tokenizer(tmp_path):
    return load_tokenizer(make_tokenizer(tmp_path / "tokenizer", pad_id=0))


def copies_of(tokenizer, texts, **options):
    """Return each copy as text, with the piece to guess, by the piece's index."""
    sentences = encode_sentences(tokenizer, texts)
    found = {}
    for pieces, batch in copy_batches(
        sentences, tokenizer.special_ids, **{"batch_tokens": 64, "longest": 9, **options}
    ):
        borders = batch.cu_seqlens.tolist()
        for number, piece in enumerate(pieces.tolist()):
            ids = batch.input_ids_T[borders[number] : borders[number + 1]].tolist()
            assert batch.masked_ids_M[number] == sentences.ids_P[piece]
            assert ids[batch.masked_positions_M[number] - borders[number]] == tokenizer.special_ids.mask
            shown = " ".join(tokenizer.pieces[index] for index in ids).replace("[MASK]", "_")
            assert piece not in found
            found[piece] = (shown, tokenizer.pieces[batch.masked_ids_M[number]])
    assert sorted(found) == list(range(len(sentences.ids_P)))
    return [found[piece] for piece in sorted(found)]


def test_copies_hide_a_piece_each(tokenizer):
    assert copies_of(tokenizer, TEXTS[:2], mask="token") == [
        ("[CLS] _ ##b c [SEP]", "a"),
        ("[CLS] a _ c [SEP]", "##b"),
        ("[CLS] a ##b _ [SEP]", "c"),
    ]


def test_later_pieces_of_the_word_are_hidden_as_well(tokenizer):
    shown = [copy for copy, _ in copies_of(tokenizer, TEXTS)]
    assert shown == [
        "[CLS] _ _ c [SEP]",
        "[CLS] a _ c [SEP]",
        "[CLS] a ##b _ [SEP]",
        "[CLS] _ b a ##b ##c . [SEP]",
        "[CLS] a _ a ##b ##c . [SEP]",
        "[CLS] a b _ _ _ . [SEP]",
        "[CLS] a b a _ _ . [SEP]",
        "[CLS] a b a ##b _ . [SEP]",
        "[CLS] a b a ##b ##c _ [SEP]",
        "[CLS] _ [SEP]",
    ]


def test_pieces_of_a_long_sentence_are_seen_with_the_nearest_ones(tokenizer):
    shown = [copy for copy, _ in copies_of(tokenizer, ["a b c d e", "a b"], longest=5, mask="token")]
    assert shown == [
        "[CLS] _ b c [SEP]",
        "[CLS] a _ c [SEP]",
        "[CLS] b _ d [SEP]",
        "[CLS] c _ e [SEP]",
        "[CLS] c d _ [SEP]",
        "[CLS] _ b [SEP]",
        "[CLS] a _ [SEP]",
    ]


def test_copies_do_not_depend_on_the_batch(tokenizer):
    assert copies_of(tokenizer, TEXTS, batch_tokens=1) == copies_of(tokenizer, TEXTS, batch_tokens=1000)


def test_words_are_those_of_transformers(tmp_path):
    save_huggingface(
        train_byte_bpe(["the whale was there, it was unquestionably a whale"] * 3, vocab_size=290), tmp_path
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["The whale's tail, wasn't it 1,234 feet?", " two  spaces", "unquestionably"]
    sentences = encode_sentences(load_tokenizer(tmp_path), texts)
    encoded = [theirs(text, add_special_tokens=False) for text in texts]
    assert sentences.ids_P.tolist() == [index for one in encoded for index in one["input_ids"]]
    assert sentences.words_P.tolist() == [word for one in encoded for word in one.word_ids()]
    assert np.all(sentences.counts_S == [len(one["input_ids"]) for one in encoded])
