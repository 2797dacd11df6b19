"""Without a network, mteb scores an exported folder on the bundled pairs as sentence-transformers does."""

import socket
from pathlib import Path

import pytest
import torch
from support.parity_models import CASES, make_tokenizer, random_model, write

from megabert.downstream.publish.forms import Forms
from megabert.downstream.publish.run_folder import export_again

CORPUS = Path(__file__).parents[2] / "examples" / "corpus" / "public_domain.jsonl"

pytestmark = pytest.mark.soak


@pytest.fixture
def no_network(monkeypatch):
    def refuse(self, address):
        raise AssertionError(f"{address}: no connection is needed")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("kind", ["mean", "cls", "colbert"])
def test_mteb_gives_the_score_of_the_evaluator(kind, tmp_path, no_network):
    pytest.importorskip("mteb", reason="pip install 'mteb>=2.26'")
    from examples.sentence_vectors import pairs, score, train

    case = CASES[0]
    torch.manual_seed(0)
    tokenizer = make_tokenizer(tmp_path / "tokenizer", pad_id=1)
    write(random_model(case.config, case.objective), tmp_path / "source", tokenizer)
    export_again(tmp_path / "source", tmp_path / "vectors", Forms(vectors=kind))
    pairs.write_pairs(CORPUS, "en", tmp_path / "pairs")

    scores = score.score(tmp_path / "vectors", tmp_path / "pairs")
    expected = train.score(train.load(tmp_path / "vectors"), pairs.read_pairs(tmp_path / "pairs" / pairs.TEST))
    assert scores["main_score"] == scores["ndcg_at_10"] == pytest.approx(expected, abs=1e-4)
    assert 0.005 < expected < 1
