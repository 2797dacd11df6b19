"""Real runs through the launchers: learning goes on alike however it is divided, launched or interrupted."""

import pytest
from integration.runs import Run

TOLERANCE = 1e-5  # relative, float32, dropout on


@pytest.fixture(scope="module")
def unbroken(shards, tmp_path_factory) -> Run:
    """One rank, never interrupted."""
    run = Run(tmp_path_factory.mktemp("runs") / "unbroken", shards)
    run.finish_well()
    return run


def assert_same_losses(run: Run, reference: Run, tolerance: float) -> None:
    expected = reference.losses()
    assert run.losses().keys() == expected.keys()
    for step, loss in run.losses().items():
        assert loss == pytest.approx(expected[step], rel=tolerance), f"step {step}"


def test_smoke_run_writes_everything_and_learns(unbroken):
    names = {path.name for path in unbroken.run_dir.iterdir()}
    assert names >= {
        "config.yaml",
        "command.txt",
        "environment.json",
        "deepspeed.json",
        "metrics.jsonl",
        "logs",
        "tb",
        "checkpoints",
        "tokenizer",
    }
    assert list(unbroken.losses()) == list(range(1, 14))
    assert unbroken.losses()[8] < unbroken.losses()[1]
    tags = set().union(*unbroken.rows())
    assert tags >= {"train/mlm_loss", "train/nsp_accuracy", "train/lr", "train/grad_norm", "perf/tokens_per_s"}
    assert tags >= {"eval/mlm_loss", "eval/nsp_accuracy", "train/trust_ratio/all", "memory/max_allocated_gib"}


def test_done_run_says_so_and_changes_nothing(unbroken):
    before = unbroken.rows()
    assert unbroken.finish_well() == before
    assert "is done" in unbroken.output


@pytest.mark.parametrize(
    ("ranks", "launcher", "flags"),
    [
        (2, "deepspeed", {"engine": "zero1"}),
        (3, "torchrun", {"engine": "zero3"}),
        (1, "none", {"micro_batch_tokens": 300, "engine": "zero2"}),
    ],
)
def test_ranks_stages_and_budgets_do_not_change_losses(unbroken, shards, tmp_path, ranks, launcher, flags):
    run = Run(tmp_path / "run", shards, ranks=ranks, launcher=launcher, flags=flags)
    run.finish_well()
    assert_same_losses(run, unbroken, TOLERANCE)
