import pickle
import random

import numpy as np
import pytest
import tokenizers
from tokenizers import models

from megabert.foundation.errors import DataError
from megabert.tokens.tokenization import Tokenizer, span_cache
from megabert.tokens.tokenization import tokenizer as tokenizer_module
from megabert.tokens.tokenization.span_cache import SpanCache
from megabert.tokens.tokenization.tokenizer_kinds import TextOptions, build_backend

LITERALS = ["[MASK]", "[SEP]", "[CLS]", "[PAD]", "[UNK]"]


@pytest.mark.parametrize("words", [1 << 18, 4])
@pytest.mark.parametrize("name", ["cased", "uncased"])
def test_words_of_any_length_are_remembered_as_they_are(name, words, request, monkeypatch):
    """Around 8 and 16 letters, where texts end, and where one word takes the place of another all the time."""
    monkeypatch.setattr(span_cache, "_WORDS", words)
    tokenizer = pickle.loads(pickle.dumps(request.getfixturevalue(name)))  # its table is its own
    generator = random.Random(1)
    alphabet = "eatHE019-.\x7f"
    texts = ["".join(generator.choice(alphabet) for _ in range(length)) for length in range(120) for _ in range(9)]
    texts += ["Z", "zebra" * 3, "zebra" * 4, "[", "the", "of\u00e9", "the"]
    wanted = [tokenizer._encode_lists([text])[0] for text in texts]
    for _ in range(2):
        assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == wanted


@pytest.mark.parametrize("template", ["{}", "a {} b", "a{}b", "{0}{0}", "{0} {0}", "[{}]", "({})."])
@pytest.mark.parametrize("literal", LITERALS)
def test_literal_special_pieces_are_tokenized_as_text(template, literal, cased, minilm):
    for tokenizer in (cased, minilm):
        text = template.format(literal)
        ids = tokenizer.encode(text)
        special = [getattr(tokenizer.special_ids, role) for role in ("mask", "sep", "cls", "pad")]
        assert not np.isin(ids, special).any()
        spaced = text.replace("[", " [ ").replace("]", " ] ")
        assert ids.tolist() == tokenizer.encode(spaced).tolist()


def test_encode_flat_gives_offsets_and_encode_batch_the_same_ids(cased):
    texts = ["Call me Ishmael.", "", "Some years ago"]
    ids, offsets = cased.encode_flat(texts)
    assert ids.dtype == np.int32
    assert offsets.dtype == np.int64
    assert offsets[0] == 0
    assert offsets[1] == offsets[2]
    assert offsets[-1] == len(ids)
    for index, part in enumerate(cased.encode_batch(texts)):
        assert part.tolist() == ids[offsets[index] : offsets[index + 1]].tolist()
    assert [part.tolist() for part in cased.encode_flat([])] == [[], [0]]


def test_decode_keeps_words_as_they_were(cased):
    assert cased.decode(cased.encode("I do not know , the whale !")) == "I do not know , the whale !"
    assert cased.decode([cased.special_ids.cls, cased.special_ids.mask]) == "[CLS] [MASK]"


def test_is_subword_marks_continuations(minilm):
    assert minilm.is_subword.shape == (30522,)
    ids = minilm.encode("embeddings")
    assert minilm.is_subword[ids].tolist() == [False] + [True] * (len(ids) - 1)
    assert len(ids) > 1


def test_pickling_keeps_ids_and_identity(uncased_korean):
    copy = pickle.loads(pickle.dumps(uncased_korean))
    assert copy.sha256 == uncased_korean.sha256
    assert copy.encode("[MASK] caf\u00e9").tolist() == uncased_korean.encode("[MASK] caf\u00e9").tolist()


def test_sha256_tells_tokenizers_apart_that_treat_text_differently(cased):
    vocabulary = cased.vocab
    hashes = {
        Tokenizer(build_backend(vocabulary, options)).sha256
        for options in (
            TextOptions(),
            TextOptions(do_lower_case=True),
            TextOptions(do_lower_case=True, strip_accents=True),
            TextOptions(do_lower_case=True, strip_accents=True, compose=True),
            TextOptions(tokenize_chinese_chars=False),
        )
    }
    assert len(hashes) == 5
    assert cased.sha256 in hashes


def test_sha256_follows_the_order_of_pieces(cased):
    pieces = [*cased.pieces[:-2], cased.pieces[-1], cased.pieces[-2]]
    swapped = Tokenizer(build_backend({piece: index for index, piece in enumerate(pieces)}, TextOptions()))
    assert swapped.sha256 != cased.sha256


def test_other_models_are_refused():
    with pytest.raises(DataError, match="the model is BPE, or in a form"):
        Tokenizer(tokenizers.Tokenizer(models.BPE()), where="folder/tokenizer.json")


def test_ids_with_a_gap_are_refused(cased):
    vocabulary = {piece: index + (index > 10) for piece, index in cased.vocab.items()}
    with pytest.raises(DataError, match="id 11 is missing"):
        Tokenizer(build_backend(vocabulary, TextOptions()), where="folder/vocab.txt")


def test_added_pieces_are_found_across_spans(cased):
    backend = tokenizers.Tokenizer.from_str(cased.to_json())
    backend.add_tokens(["white whale"])
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode("white whale").tolist() == [cased.vocab_size]
    assert tokenizer.sha256 != cased.sha256


def test_cache_stays_bounded(monkeypatch):
    monkeypatch.setattr("megabert.tokens.tokenization.span_cache.MAX_SPANS", 100)
    calls = []

    def encode(texts):
        calls.append(len(texts))
        return [[len(text)] for text in texts]

    cache = SpanCache(encode)
    for number in range(20):
        ids, _ = cache.encode_flat([f"{word}" * 3 for word in range(number * 50, number * 50 + 50)])
        assert len(ids) == 50
        assert len(cache) <= 150
    assert sum(calls) == 1000
    cache.encode_flat(["994994994 999999999"])
    assert sum(calls) == 1000


def test_cache_cuts_huge_calls_into_batches(monkeypatch):
    monkeypatch.setattr("megabert.tokens.tokenization.span_cache._BATCH_BYTES", 10)
    cache = SpanCache(lambda texts: [[int(text)] if text else [] for text in texts])
    texts = [f"{number} {number + 1}" for number in range(100)] + [""]
    ids, offsets = cache.encode_flat(texts)
    assert ids.reshape(-1, 2).tolist() == [[number, number + 1] for number in range(100)]
    assert np.diff(offsets).tolist() == [2] * 100 + [0]


def test_few_long_texts_reach_the_library_in_parts_of_bounded_size(cased, monkeypatch):
    calls = []
    encode = cased._backend.encode_batch_fast
    backend = type("Backend", (), {})()
    backend.encode_batch_fast = lambda texts, **options: calls.append(sum(map(len, texts))) or encode(texts, **options)
    other = Tokenizer(cased._backend)
    monkeypatch.setattr(other, "_encoder", backend)
    monkeypatch.setattr(tokenizer_module, "CHARACTERS_PER_CALL", 10_000)
    words = [f"w{number}" * 20 for number in range(1_500)]
    ids = other._encode_lists(words)
    assert ids == [encoding.ids for encoding in encode(words, add_special_tokens=False)]
    assert len(calls) > 10
    assert max(calls) <= 2 * tokenizer_module.CHARACTERS_PER_CALL


def test_the_example_of_encode_word_is_what_happens():
    """The pieces, input and outputs are those in the docstring of `wordpiece_loops._encode_word`."""

    def pieces_of(pieces):
        vocabulary = {piece: i for i, piece in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces])}
        tokenizer = Tokenizer(build_backend(vocabulary, TextOptions()))
        texts = ["unaffable"] * (tokenizer_module.FEW_TEXTS + 1)  # enough for the loops to encode them
        return [[tokenizer.pieces[index] for index in ids] for ids in tokenizer.encode_batch(texts)]

    assert all(ids == ["un", "##aff", "##able"] for ids in pieces_of(["un", "##aff", "##able", "##ab"]))
    assert all(ids == ["[UNK]"] for ids in pieces_of(["un", "##aff", "##able", "##ab", "una"]))


@pytest.mark.parametrize("count", [1, tokenizer_module.FEW_TEXTS + 1])
def test_half_a_surrogate_pair_is_refused(cased, count):
    texts = ["a"] * (count - 1) + ["ab\ud83dc"]
    message = rf"texts\[{count - 1}\]: the character at 2 is half of a surrogate pair \(U\+D83D\)"
    for encode in (cased.encode_flat, cased.encode_batch, cased.encode_with_offsets):
        with pytest.raises(DataError, match=message):
            encode(texts)
    with pytest.raises(DataError, match="half of a surrogate pair"):
        cased.normalize(texts[-1])


@pytest.mark.parametrize("index", [-1, 1 << 32, 1 << 70])
def test_a_number_that_is_no_id_is_refused(cased, index):
    with pytest.raises(DataError, match=f"{index} is no id, allowed are 0 to {cased.vocab_size - 1}"):
        cased.decode([5, index])
