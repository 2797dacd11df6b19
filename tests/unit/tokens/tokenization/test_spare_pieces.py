"""Spare pieces: their ids, the readers of a text that take them, and that no other piece changes."""

import hashlib
import pickle
from collections import Counter

import pytest
import transformers

from megabert.foundation.errors import ConfigError, DataError
from megabert.tokens import tokenization
from megabert.tokens.tokenization import training
from megabert.tokens.tokenization.alphabet import choose_alphabet

WORDS = [chr(97 + i % 26) * (i % 7 + 1) + chr(97 + i * 7 % 26) + chr(97 + i * 5 % 26) for i in range(4000)]
TRAINERS = {
    "wordpiece": (training.wordpiece_spans, training.train_wordpiece_on),
    "byte_bpe": (training.byte_bpe_spans, training.train_byte_bpe_on),
    "unigram": (tokenization.unigram_spans, tokenization.train_unigram_on),
}
SIZES = {"wordpiece": 350, "byte_bpe": 350, "unigram": 150}
# SHA-256 of all files of a vocabulary of 700 pieces without spare ones, from before there were any.
WITHOUT_SPARE = {
    "wordpiece": "7146070ab79507ff3eb01886d503d22cec80a185e4b6d06304fad0b1038e1586",
    "byte_bpe": "b5ba19fb09a3ad59fb0300e1007ab2415e46748f382eca52a523ab2ca38e47ec",
}
SPELT = ["[unused3]", "aaab [unused3] bbc", "ab[unused7]", "[unused8] [UNUSED3] [MASK", "[unused3] aaab"]


def train(pieces, vocab_size, spare_pieces=0):
    text = " ".join(WORDS)
    spans_of, train_on = TRAINERS[pieces]
    return train_on(Counter(spans_of(text)).items(), vocab_size=vocab_size, spare_pieces=spare_pieces)


@pytest.fixture(scope="module", params=["wordpiece", "byte_bpe", "unigram"])
def pieces(request):
    return request.param


@pytest.fixture(scope="module")
def spare(pieces):
    return train(pieces, SIZES[pieces] + 8, spare_pieces=8)


@pytest.mark.parametrize("pieces", WITHOUT_SPARE)
def test_files_without_spare_pieces_are_as_ever(pieces, tmp_path):
    tokenization.save_huggingface(train(pieces, 700), tmp_path)
    digest = hashlib.sha256()
    for file in sorted(tmp_path.iterdir()):
        digest.update(file.name.encode() + file.read_bytes())
    assert digest.hexdigest() == WITHOUT_SPARE[pieces]


def test_spare_pieces_follow_the_special_ones_and_count_as_pieces(pieces, spare):
    smaller = train(pieces, SIZES[pieces])
    assert smaller.vocab_size == SIZES[pieces]
    names = [f"[unused{number}]" for number in range(8)]
    assert spare.pieces == [*smaller.pieces[:5], *names, *smaller.pieces[5:]]
    assert spare.special_ids == smaller.special_ids
    assert not spare.is_subword[5:13].any()


def test_text_for_pre_training_never_has_them(spare):
    ids, _ = spare.encode_flat(SPELT * 100)  # enough for the compiled loops to encode them
    few, _ = spare.encode_flat(SPELT)
    assert not set(range(5, 13)) & {*ids.tolist(), *few.tolist()}


def test_transformers_and_a_reader_of_spare_pieces_take_them(spare, tmp_path):
    tokenization.save_huggingface(spare, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = tokenization.load_tokenizer(tmp_path, reads_spare=True)
    assert ours.encode("[unused3]").tolist() == [8]
    assert theirs.encode("[unused3]", add_special_tokens=False) == [8]
    for text in SPELT:
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)
    assert pickle.loads(pickle.dumps(ours)).encode("[unused3]").tolist() == [8]
    assert len(theirs) == spare.vocab_size
    assert not any("unused" in name for name in theirs.all_special_tokens)


def test_saving_and_loading_keeps_them(spare, tmp_path):
    tokenization.save_huggingface(spare, tmp_path / "one")
    loaded = tokenization.load_tokenizer(tmp_path / "one", reads_spare=True)
    assert loaded.sha256 == tokenization.load_tokenizer(tmp_path / "one").sha256 == spare.sha256
    tokenization.save_huggingface(loaded, tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_too_many_are_refused(pieces):
    with pytest.raises(ConfigError, match="spare pieces"):
        train(pieces, 300, spare_pieces=295)
    words = {chr(0x4E00 + index): 5 for index in range(900)}
    with pytest.raises(DataError, match=r"500 beside 100 spare pieces. Raise vocab_size to 1,900 or more"):
        choose_alphabet(words.items(), capacity=500, spare_pieces=100)
