"""The relatives of BERT on the real code path: a few steps, kill -9, resume, export, and transformers loads it."""

import numpy as np
import pytest
import torch
from support.bundled_corpus import build_shards
from support.runs import Run, kill_everything
from support.soak import in_soak

from megabert.downstream.export.sources import open_source
from megabert.downstream.publish.run_folder import export_run

TILED = {"phases.1.new_positions": "tile"}
FLAGS = {
    "roberta": {"model.family": "roberta", **TILED},
    "albert": {"model.family": "albert", "model.embedding_size": 16, **TILED},
    "electra": {"model.family": "electra", "model.embedding_size": 16, "model.generator_size": 0.5, **TILED},
    "deberta": {"model.family": "deberta"},
    "deberta-v2": {"model.family": "deberta-v2", "model.position_buckets": 16},
    "deberta-v3": {
        "model.family": "deberta-v3",
        "model.generator_size": 0.5,
        "model.generator_layers": 1,
        "model.position_buckets": 16,
    },
    "modernbert": {"model.family": "modernbert", "model.local_attention": 8, "phases.0.global_rope_theta": 20},
}
AUTO_CLASSES = {
    "roberta": "RobertaForMaskedLM",
    "albert": "AlbertForPreTraining",
    "electra": "ElectraForPreTraining",
    "deberta": "DebertaForMaskedLM",
    "deberta-v2": "DebertaV2ForMaskedLM",
    "deberta-v3": "DebertaV2Model",
    "modernbert": "ModernBertForMaskedLM",
}
GENERATORS = {"electra": "ElectraForMaskedLM", "deberta-v3": "DebertaV2ForMaskedLM"}
# One rank, one phase; the narrow sizes and the dropout of runs.TINY.
SHORT = {"phases.0.steps": 6, "phases.1.steps": 2}


@pytest.fixture(scope="module")
def data(corpus, tmp_path_factory):
    """Shards of each family: dynamic masks for single segments, masks in the shards for pairs."""
    folder = tmp_path_factory.mktemp("families")
    dynamic = ["--objective", "none", "--masking", "dynamic", "--dupe-factor", "1"]
    flags = {
        "roberta": [*dynamic, "--pieces", "byte_bpe"],
        "albert": ["--objective", "sop", "--mask-unit", "span", "--dupe-factor", "1"],
        "electra": dynamic,
    }
    built = {family: build_shards(corpus, folder / family, *own) for family, own in flags.items()}
    byte_bpe, wordpiece = built["roberta"], built["electra"]
    return {**built, "deberta": byte_bpe, "deberta-v2": wordpiece, "deberta-v3": wordpiece, "modernbert": byte_bpe}


def run_of(family, data, run_dir) -> Run:
    return Run(run_dir, data[family], flags={**SHORT, **FLAGS[family]})


@pytest.mark.parametrize("family", ["albert", "modernbert", *in_soak("roberta", "deberta-v2", "deberta-v3")])
def test_family_trains_and_transformers_loads_it(family, data, tmp_path):
    run = run_of(family, data, tmp_path / "run")
    run.finish_well()
    check_export(run, family)
    if family == "modernbert":  # the first phase has a base of rotary positions of its own
        bases = [open_source(str(run.run_dir), step).model.global_rope_theta for step in ("6", "last")]
        assert bases == [20, 160_000]
    if "phases.1.new_positions" in FLAGS[family]:
        check_new_positions(run, family)


@pytest.mark.parametrize("family", ["electra", *in_soak("deberta", "deberta-v2", "deberta-v3", "modernbert")])
def test_killed_run_resumes_bit_for_bit(family, data, tmp_path):
    """Compare two complete runs: an uninterrupted one, and one killed in between and started again."""
    uninterrupted = run_of(family, data, tmp_path / "uninterrupted")
    uninterrupted.flags["phases.0.steps"] = 20
    rows = uninterrupted.finish_well()
    assert ({"train/rtd_loss", "train/rtd_auc", "train/mlm_loss"} <= rows[0].keys()) == (family in GENERATORS)
    assert "train/nsp_loss" not in rows[0]
    killed = run_of(family, data, tmp_path / "killed")
    killed.flags["phases.0.steps"] = 20
    process = killed.start()
    try:
        killed.wait_for_step(5, process)
    finally:
        kill_everything(process)
    assert len(killed.losses()) < 22, "it ended before it was killed"
    killed.finish_well()
    assert killed.losses() == uninterrupted.losses()
    check_export(uninterrupted, family)


def check_new_positions(run: Run, family: str) -> None:
    """Check that exported positions 64 to 125 are still like 1 to 62: RoBERTa counts them from the padding id + 1."""
    import transformers

    model = getattr(transformers, AUTO_CLASSES[family]).from_pretrained(run.run_dir / "exports" / "last")
    first = model.config.pad_token_id + 1 if family == "roberta" else 0
    positions = model.base_model.embeddings.position_embeddings.weight[first:].detach()
    likeness = torch.cosine_similarity(positions[64:126], positions[1:63])
    assert likeness.min() > 0.5 > torch.cosine_similarity(positions[65:127], positions[1:63]).max()


def check_export(run: Run, family: str) -> None:
    """Export the last checkpoint and load it with the class that it names."""
    import transformers

    folder = run.run_dir / "exports" / "last"
    export_run(run.run_dir, folder)
    parts = [(AUTO_CLASSES[family], folder)]
    if family in GENERATORS:
        parts.append((GENERATORS[family], folder / "generator"))
    for name, part in parts:
        model, info = getattr(transformers, name).from_pretrained(part, output_loading_info=True)
        assert not info["missing_keys"]
        assert not [name for name in info["unexpected_keys"] if not name.startswith("mask_predictions.")]
        tokenizer = transformers.AutoTokenizer.from_pretrained(part)
        encoded = tokenizer("The whale is in the sea.", return_tensors="pt")
        with torch.no_grad():
            output = model.eval()(**encoded)
        assert np.isfinite(output[0].numpy()).all()
