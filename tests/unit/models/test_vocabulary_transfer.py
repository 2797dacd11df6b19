"""Rows of a vocabulary for another one: what is kept, what is a mean, what nothing is known of."""

import logging

import pytest
import torch

from megabert.foundation.errors import ConfigError
from megabert.models.transfer import plan_transfer, transfer_vocabulary
from megabert.tokens.tokenization import Tokenizer
from megabert.tokens.tokenization.tokenizer_kinds import TextOptions, build_backend
from megabert.tokens.tokenization.training import train_byte_bpe

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OLD = [*SPECIAL, "read", "##ing", "##er", "write", "a", "##a", "ing"]


def wordpiece(pieces: list[str], **options) -> Tokenizer:
    return Tokenizer(build_backend({piece: index for index, piece in enumerate(pieces)}, TextOptions(**options)))


@pytest.fixture(scope="module")
def state():
    rows = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    return {
        "bert.embeddings.word_embeddings.weight": rows,
        "cls.predictions.decoder.bias": rows[:, 0].clone(),
        "cls.predictions.transform.dense.weight": rows[:4],
    }


def test_pieces_are_kept_averaged_or_unknown(state, caplog):
    new = ["reading", "[MASK]", "write", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "##ing", "##era", "ing", "qa"]
    transfer = plan_transfer(wordpiece(OLD), wordpiece(new))
    old = {piece: index for index, piece in enumerate(OLD)}
    expected = {"reading": ("read", "##ing"), "qa": ()}
    expected["##era"] = ("##er", "##a")  # not as the word "era", for which there is no piece
    found = {piece: transfer.parts[index] for index, piece in enumerate(new)}
    kept = [piece for piece in new if piece not in expected]
    assert found == {piece: tuple(old[part] for part in expected.get(piece, (piece,))) for piece in new}
    assert transfer.kept == len(kept)

    with caplog.at_level(logging.INFO, logger="megabert"):
        result = transfer_vocabulary(state, transfer)
    assert "of 11 pieces 8 keep their rows, 2 begin as the mean of their old pieces, 1, which" in caplog.text
    rows, before = (given["bert.embeddings.word_embeddings.weight"] for given in (result, state))
    assert rows.shape == (64, 4)
    assert torch.equal(rows[2], before[old["write"]])
    torch.testing.assert_close(rows[0], (before[old["read"]] + before[old["##ing"]]) / 2)
    torch.testing.assert_close(rows[10], before[: len(OLD)].mean(0))
    assert not rows[11:].any()
    torch.testing.assert_close(result["cls.predictions.decoder.bias"], rows[:, 0])
    assert result["cls.predictions.transform.dense.weight"] is state["cls.predictions.transform.dense.weight"]


def test_kinds_of_tokenizers_share_what_they_write_alike():
    texts = ["the whale reads the sea", "reading whales", "바다는 넓다 바다는 깊다"] * 20
    byte_bpe, words = (
        train_byte_bpe(texts, vocab_size=320),
        wordpiece([*SPECIAL, "the", "whale", "##s", "sea", "e", "##r"]),
    )
    transfer = plan_transfer(byte_bpe, words)
    parts = dict(zip(words.pieces, transfer.parts, strict=True))
    names = {piece: [byte_bpe.pieces[index] for index in ids] for piece, ids in parts.items()}
    assert names["the"] == ["\u0120the"]
    assert names["##s"] == ["s"]
    assert names["[MASK]"] == ["<mask>"]
    # The other way round, parts of a character, which WordPiece has no piece for, begin as the mean of all.
    back = dict(zip(byte_bpe.pieces, plan_transfer(words, byte_bpe).parts, strict=True))
    assert back["\u0120the"] == (5,)
    assert back["\u00eb"] == ()  # the first byte of a Hangul syllable
    # and another byte-level BPE writes them byte by byte.
    larger = train_byte_bpe(texts, vocab_size=300)
    missing = [ids for ids in plan_transfer(larger, byte_bpe).parts if not ids]
    assert not missing


def test_vocabulary_that_shares_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"none of the 7 pieces .* is one of the 12 in .* without --init-from"):
        plan_transfer(wordpiece(OLD), wordpiece([*SPECIAL, "\ubc14", "##\ub2e4"]))
