"""Each family learns from the bundled corpus on a CPU, through a kill -9 and a resume."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))

from integration.conftest import CORPUS
from integration.runs import TINY, Run, kill_everything
from soak_table import SoakTable

from megabert.inspection.report import report_run

pytestmark = pytest.mark.soak

RECIPE = Path(__file__).with_name("families.yaml")
KILLED_AT = 150
SINGLE = ["--objective", "none", "--masking", "dynamic", "--dupe-factor", "1"]
BUILDS = {
    "roberta": [*SINGLE, "--pieces", "byte_bpe"],
    "albert": ["--objective", "sop", "--dupe-factor", "2", "--uncased"],
    "electra": [*SINGLE, "--uncased", "--lengths", "32"],
    "deberta": [*SINGLE, "--pieces", "byte_bpe"],
    "deberta-v2": [*SINGLE, "--uncased"],
}
FLAGS = {
    "roberta": {},
    "albert": {"model.embedding_size": 64},
    # The generator soon draws by frequency alone: to tell its draws apart takes context, and more tokens.
    "electra": {
        "model.generator_size": 0.25,
        "model.initializer_range": 0.05,
        "optimizer.betas": "[0.9, 0.98]",
        "phases.0.max_seq_length": 32,
        "phases.0.global_batch_size": 64,
        "phases.0.steps": 1400,
        "phases.0.learning_rate": "3.0e-3",
        "model.num_attention_heads": 8,
    },
    "deberta": {},
    "deberta-v2": {"model.position_buckets": 32},
}
MIN_AUC = 0.6


@pytest.fixture(scope="module")
def table():
    return SoakTable(
        "families",
        f"each family on the bundled corpus, instances of up to 64 tokens, killed -9 after step {KILLED_AT}, resumed; "
        f"bars: held-out masked-LM loss below the unigram baseline; ELECTRA: AUC above {MIN_AUC}",
        f"{'family':<10} {'steps':>5} {'loss':>6} {'unigram':>8} {'below':>6}  further",
    )


@pytest.mark.parametrize("family", BUILDS)
def test_family_learns_through_a_kill(family, table, tmp_path):
    data = build(tmp_path / "data", BUILDS[family])
    flags = dict.fromkeys(TINY) | {"model.family": family, **FLAGS[family]}
    run = Run(tmp_path / "run", data, recipe=str(RECIPE), flags=flags)
    process = run.start()
    try:
        run.wait_for_step(KILLED_AT, process, timeout_s=1500)
    finally:
        kill_everything(process)
    assert max(run.losses()) < 300, "it ended before it was killed"
    assert run.finish(timeout_s=1800) == 0, run.output[-4000:]
    assert "resuming" in run.output
    (report,) = report_run(run.run_dir)
    scores = [row for row in run.rows() if "eval/loss" in row][-1]
    further = [
        f"{name.removeprefix('eval/')} {scores[name]:.3f}" for name in sorted(scores) if "nsp" in name or "rtd" in name
    ]
    losses = f"{report.held_out_mlm_loss:6.3f} {report.unigram.loss:8.3f} {report.margin:6.3f}"
    table.add(f"{family:<10} {report.steps:>5} {losses}  {', '.join(further)}")
    assert report.margin > 0
    if family == "electra":
        assert scores["eval/rtd_auc"] > MIN_AUC


def build(output: Path, flags: list[str]) -> Path:
    import subprocess

    command = [sys.executable, "-m", "data_prep", "build", "--input", str(CORPUS), "--output", str(output)]
    command += ["--vocab-size", "600", "--lengths", "64", "--workers", "1", "--validation-share", "0.05", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return output
