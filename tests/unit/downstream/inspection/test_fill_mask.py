from dataclasses import replace

import numpy as np
import torch
from unit.downstream.inspection.conftest import PIECES

from megabert.cli import main
from megabert.downstream.export import model_folder as folders
from megabert.downstream.inspection.encode_text import RankedPiece, best_pieces
from megabert.downstream.inspection.fill_mask import fill_mask, render_guesses
from megabert.models.bert import BertForPreTraining
from megabert.models.build import initialize


def test_each_mask_gets_its_best_guesses_first(model, tokenizer):
    guesses = fill_mask(model, tokenizer, "the [MASK] sat . the [MASK]s .", top_k=3)
    assert len(guesses) == 2
    for column in guesses:
        probabilities = [guess.score for guess in column]
        assert len(column) == 3
        assert probabilities == sorted(probabilities, reverse=True)
        assert all(guess.piece in PIECES for guess in column)
    whole = fill_mask(model, tokenizer, "the [MASK]", top_k=len(PIECES))[0]
    assert abs(sum(guess.score for guess in whole) - 1) < 1e-5


def test_guesses_are_of_the_model_at_the_mask(model, tokenizer):
    with torch.no_grad():
        model.cls.predictions.decoder.bias[PIECES.index("dog")] = 20
    assert fill_mask(model, tokenizer, "the [MASK] sat", top_k=1)[0][0].piece == "dog"


def test_rows_without_a_piece_take_their_share_and_are_never_guessed(model, tokenizer):
    config = replace(model.config, vocab_size=len(PIECES) + 3)
    larger = BertForPreTraining(config).eval()
    initialize(larger, 0)
    with torch.no_grad():
        larger.cls.predictions.decoder.bias[len(PIECES) :] = 20
    (guesses,) = fill_mask(larger, tokenizer, "the [MASK] sat", top_k=len(PIECES) + 3)
    assert {guess.piece for guess in guesses} == set(PIECES)
    assert sum(guess.score for guess in guesses) < 1e-3  # the softmax is over all rows, as in transformers


def test_best_pieces_are_the_most_frequent(tokenizer):
    counts = np.zeros(len(PIECES), np.int64)
    counts[PIECES.index("cat")], counts[PIECES.index("the")] = 1, 3
    assert best_pieces(counts / counts.sum(), tokenizer, 2) == [RankedPiece("the", 0.75), RankedPiece("cat", 0.25)]


def test_guesses_are_shown_side_by_side():
    table = render_guesses(
        "a [MASK]",
        {
            "unigram": [[RankedPiece("the", 0.25), RankedPiece("a", 0.1)]],
            "trained": [[RankedPiece("cat", 0.5), RankedPiece("dog", 0.25)]],
        },
    )
    assert table.splitlines() == [
        "a [MASK]",
        "  unigram    trained",
        "  the 25.0%  cat 50.0%",
        "  a 10.0%    dog 25.0%",
    ]


def test_an_output_in_the_folder_of_a_shipped_model_is_refused(model_folder, tmp_path, monkeypatch, capsys):
    config = model_folder / "config.json"
    before = config.read_bytes()
    model_folder.rename(tmp_path / "english")
    monkeypatch.setattr(folders, "SHIPPED_MODELS", tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    output = tmp_path / "english" / config.name
    assert main(["attention", "--model", "english", "--output", str(output), "the cat"]) != 0
    assert str(output) in capsys.readouterr().err
    assert output.read_bytes() == before
