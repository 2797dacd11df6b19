"""kill -9 inside the batch ramp and around each switch of phase, resumed on other worlds and ZeRO stages."""

import pytest
from support.bundled_corpus import build_shards, small_corpus
from support.runs import TINY, Run, assert_equal_runs, kill_everything

pytestmark = pytest.mark.soak

# Three phases, all over the same shards; every schedule, the moving average and z-loss are on.
PHASES = """
phases:
  - {max_seq_length: 64, steps: 40, global_batch_size: 24, initial_batch_size: 5, batch_warmup_steps: 30,
     learning_rate: 1.0e-2, warmup_ratio: 0.2, decay: constant, masked_lm_prob: 0.4,
     final_masked_lm_prob: 0.2}
  - {max_seq_length: 64, tokens: 12000, global_batch_size: 17, learning_rate: 1.0e-2, decay: constant,
     masked_lm_prob: 0.2, masked_lm_rarity: 0.5, mask_actions: [0.9, 0.05, 0.05]}
  - {max_seq_length: 64, steps: 20, global_batch_size: 24, learning_rate: 1.0e-2, decay: one_minus_sqrt,
     decay_ratio: 0.5, final_learning_rate: 1.0e-4, masked_lm_range: [0.1, 0.5],
     masked_lm_weight: inverse_share}
average: {decay: 0.9}
z_loss: 1.0e-3
validation: {weights: average, every_steps: 10, max_instances: 40}
checkpoint: {every_steps: 4}
logging: {every_steps: 1}
micro_batch_tokens: 512
model:
  {preset: tiny, hidden_size: 32, num_attention_heads: 2, intermediate_size: 64, hidden_dropout_prob: 0.1,
   attention_probs_dropout_prob: 0.1}
"""
RAMP, FIRST_SWITCH = 30, 40
STARTS = (("zero1", 1), ("zero3", 2), ("zero0", 3), ("zero2", 2), ("zero1", 3), ("zero3", 1), ("zero1", 2))
"""ZeRO stage and ranks of each start of the run that changes them."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    dynamic = ("--objective", "none", "--masking", "dynamic", "--dupe-factor", "1")
    return build_shards(small_corpus(folder), folder / "shards", *dynamic)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "schedules.yaml"
    path.write_text(PHASES)
    return str(path)


@pytest.fixture(scope="module")
def unbroken(shards, recipe, tmp_path_factory):
    run = run_of(tmp_path_factory.mktemp("unbroken") / "run", shards, recipe)
    run.finish_well()
    return run


def run_of(run_dir, shards, recipe, *, ranks=1, engine="zero1") -> Run:
    flags = {**dict.fromkeys(TINY), "engine": engine}  # the recipe says the rest
    return Run(run_dir, shards, ranks=ranks, launcher="torchrun", recipe=recipe, flags=flags)


def rows_of(run: Run) -> list[dict]:
    return [row for row in run.rows() if "train/loss" in row]


def kill_behind(run: Run, step: int) -> int:
    """Start, kill -9 everything once a step was logged; return the last step that was."""
    process = run.start()
    try:
        run.wait_for_step(step, process)
    finally:
        kill_everything(process)
    return max(run.losses())


def kill_steps(unbroken: Run) -> list[int]:
    """Return steps inside the ramp and just before each switch of phase, so that some kills come after it."""
    phases = [row["phase"] for row in rows_of(unbroken)]
    switches = [step for step in range(1, len(phases)) if phases[step] != phases[step - 1]]
    assert switches[0] == FIRST_SWITCH
    return [4, 17, RAMP - 3, FIRST_SWITCH - 2, FIRST_SWITCH + 1, switches[1] - 2, switches[1] + 3]


def test_schedules_are_those_by_hand(unbroken, shards):
    rows = rows_of(unbroken)
    sizes = [5 + 19 * batch // RAMP for batch in range(RAMP)] + [24] * 10
    sizes += [17] * sum(row["phase"] == 2 for row in rows) + [24] * 20
    assert [row["train/global_batch_size"] for row in rows] == sizes
    assert [row["progress/samples"] for row in rows] == [sum(sizes[: k + 1]) for k in range(len(sizes))]
    for phase, share in ((1, 0.3), (2, 0.2), (3, 0.3)):
        own = [row["train/masked_share"] for row in rows if row["phase"] == phase]
        assert sum(own) / len(own) == pytest.approx(share, abs=0.01)
    assert [row["train/lr"] for row in rows][-1] == 1e-4


def test_killed_run_is_the_unbroken_one_bit_for_bit(unbroken, shards, recipe, tmp_path):
    run = run_of(tmp_path / "run", shards, recipe)
    killed_at = [kill_behind(run, step) for step in kill_steps(unbroken) if step > max(run.losses(), default=0)]
    run.finish_well()
    assert_equal_runs(run, unbroken)
    print(f"\nkilled after steps {killed_at}: {len(run.losses())} losses and all validations the same bit for bit")
    assert len(killed_at) >= 4


def test_killed_run_on_other_worlds_and_stages_trains_on_the_same_batches(unbroken, shards, recipe, tmp_path):
    killed_at = []
    for step, (engine, ranks) in zip(kill_steps(unbroken), STARTS, strict=True):
        run = run_of(tmp_path / "run", shards, recipe, ranks=ranks, engine=engine)
        if step > max(run.losses(), default=0):
            killed_at.append((kill_behind(run, step), engine, ranks))
    run.finish_well()
    for mine, theirs in zip(rows_of(run), rows_of(unbroken), strict=True):
        for tag in ("step", "phase", "phase_step", "train/lr", "train/global_batch_size", "train/masked_share"):
            assert mine[tag] == theirs[tag]
        assert mine["train/loss"] == pytest.approx(theirs["train/loss"], rel=1e-3)
    for mine, theirs in zip(run.held_out_rows(), unbroken.held_out_rows(), strict=True):
        assert mine["eval/loss"] == pytest.approx(theirs["eval/loss"], rel=1e-3)
    print(f"\nkilled after (step, stage, ranks) {killed_at}: the same batches; losses within 1e-3")
    assert len(killed_at) >= 4
