"""Parts of the GPU runbook on a CPU: what they train, compare, and hold against bars."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import embedding_problem, trainer
from benchmarks.gpu.bars import CARD, KILLED, held_against_bars
from benchmarks.gpu.batches import random_batch
from benchmarks.gpu.parity import DTYPES, parity_problems
from benchmarks.gpu.repeats import count_differences
from benchmarks.gpu.resume import compare
from benchmarks.gpu.rows import Rows
from benchmarks.gpu.sizes import TINY
from benchmarks.gpu.trainer import PHASES, RECIPE, WARM_UP, phase_row
from megabert.ops import dense as op
from megabert.ops.dense import gradient_sum_of
from megabert.ops.proof.problem import TOLERANCE
from megabert.ops.proof.table import compare_one
from megabert.settings.config.loading import read_yaml

ROOT = Path(__file__).resolve().parents[3]


def test_reversed_batch_holds_the_same_sequences():
    batch = random_batch(48, 16, 90, seed=3)
    turned = batch.reversed()
    assert turned.input_ids_T.view(3, 16).flip(0).flatten().equal(batch.input_ids_T)
    for some in (batch, turned):
        assert (some.input_ids_T[some.masked_positions_M] == 4).all()
    pairs = [sorted(zip(b.masked_positions_M % 16, b.masked_ids_M, strict=True)) for b in (batch, turned)]
    assert [(int(a), int(b)) for a, b in pairs[0]] == [(int(a), int(b)) for a, b in pairs[1]]


def test_figures_are_held_against_their_bars():
    attention = "attention 64x512x16x64"
    found = held_against_bars(
        {
            "products": {
                "9 tokens, the eight in a loop, bf16 cublas": {"tflop_per_s": 1300.0},  # not in 8 bits
                "9 tokens, the eight in a loop, fp8 row-wise": {"tflop_per_s": 1100.0},
                "9 tokens, the eight in a loop, fp8 tensor-wise": {"tflop_per_s": 1210.0},
                "9 tokens, the twelve in a loop, bf16 cublas": {"tflop_per_s": 700.0},
            },
            "parity": {"a bfloat16": {"passes": True}, "a float16": {"passes": True}, "b float16": {"error": "E"}},
            "ops": {
                "layer_norm 8x8 forward megabert": {"ms": 1.0, "share_of_copy": 0.9},
                "layer_norm 8x8 forward torch eager": {"ms": 1.0, "share_of_copy": 0.1},
                "lamb 9 in 2 pass 1 megabert": {"ms": 1.0, "share_of_copy": 0.7},
                f"{attention} forward megabert": {"ms": 1.0, "compiled_in_window": ["attention_forward"]},
                f"{attention} backward megabert": {"ms": 2.0},
                f"{attention} forward sdpa flash, no dropout": {"ms": 0.1},
                f"{attention} backward sdpa flash, no dropout": {"ms": 0.2},
            },
            "training": {"length 512 megabert eager": {"tokens_per_s": 260_000, "mfu_pct": 55.0}},
            "fp8": {"length 512 megabert fp8 eager": {"tokens_per_s": 290_000, "mfu_pct": 60.0}},
            "peers": {
                "length 512 transformers sdpa": {"tokens_per_s": 100_000},
                f"{attention} forward sdpa flash": {"ms": 0.9},
                f"{attention} backward sdpa flash": {"ms": 2.5},
                f"{attention} forward sdpa math": {"ms": 0.1},  # no backward: no rival
            },
            "trainer": {"length 512 megabert pretrain, x": {"tokens_per_s": 260_000, "mfu_pct": 52.0}},
            "agreement": {
                "length 512 fused against reference": {"largest_difference": 0.031},
                "length 512 torch in bfloat16 against reference": {"largest_difference": 0.01},
                "length 512 torch in bfloat16, sequences reversed against reference": {"largest_difference": 0.02},
            },
            "resume": {KILLED: {"passes": True, "first_difference": None}},
            "speedrun": {"speed run": {"minutes": 3.4, "snli_accuracy": 0.7, "snli_accuracy_random": 0.6}},
            "pretraining": {
                "megabert: held out": {"mlm_loss_128": 3.0},
                "transformers: held out": {"mlm_loss_128": 3.1},
            },
        }
    )
    compiled = found.pop("rows that Triton compiled a kernel for while they were timed")
    assert compiled == {"bar": 0, "found": [f"ops: {attention} forward megabert"], "reached": False}
    assert found["products, the eight in a loop, fp8: TFLOP/s"]["found"] == 1210
    assert {name for name, bar in found.items() if CARD in str(bar["bar"])} == ONE_CARDS
    drift = found["length 512: largest difference from the float32 losses"]
    assert (drift["bar"], drift["found"]) == (pytest.approx(0.03), 0.031)
    assert {name: bar["reached"] for name, bar in found.items()} == {
        "products, the eight in a loop, fp8: TFLOP/s": True,
        "parity bfloat16": True,
        "parity float16": False,
        "layer_norm 8x8 forward megabert: share of copy": True,
        "lamb 9 in 2 pass 1 megabert: share of copy": False,
        f"{attention}: ms, both ways, at most SDPA's": True,
        "length 512 megabert eager: tokens/s": False,
        "length 512 megabert eager: MFU": True,
        "length 512 megabert eager: tokens/s, transformers": True,
        "length 512 megabert fp8 eager: tokens/s": True,
        "length 512 megabert fp8 eager: MFU": True,
        "length 512 megabert fp8 eager: tokens/s, in bfloat16": True,
        "length 512 megabert fp8 eager: tokens/s, transformers": True,
        "length 512 megabert pretrain, x: MFU": False,  # and no tokens/s: its corpus is another one
        "length 512: largest difference from the float32 losses": False,
        KILLED: True,
        "speed run: minutes": True,
        "speed run: SNLI, random weights": True,
        "held-out loss at 128, transformers'": True,
    }


ONE_CARDS = {
    "products, the eight in a loop, fp8: TFLOP/s",
    "length 512 megabert eager: MFU",
    "length 512 megabert eager: tokens/s",
    "length 512 megabert fp8 eager: MFU",
    "length 512 megabert fp8 eager: tokens/s",
    "length 512 megabert pretrain, x: MFU",
    "speed run: minutes",
}
"""Bars that name the card that they are for; the others hold on each card."""


def test_trainers_phases_leave_out_their_warm_up_and_name_late_compilations(tmp_path):
    phases = read_yaml(RECIPE)["phases"]
    for name, phase in zip(PHASES, phases, strict=True):
        assert f"length {phase['max_seq_length']} " in name
        assert phase["steps"] > WARM_UP
    rows = [
        {
            "step": step, "phase": 2, "phase_step": step, "perf/tokens_per_s": 100.0 * step, "train/loss": 1.0,
            "perf/data_wait_pct": 0.0, "memory/max_allocated_gib": 1.0, "perf/compiled_kernels": 4 - step,
        }
        for step in (1, 2, 3)
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = phase_row(tmp_path, 2, 1)
    assert (row["tokens_per_s"], row["steps"], row["compiled_in_window"]) == (240, 2, 3)


def test_training_that_is_cut_short_still_has_the_rows_of_its_phases(monkeypatch, tmp_path):
    (tmp_path / "rows").mkdir()
    rows = Rows(tmp_path / "rows" / "trainer.json", {}, deadline=time.monotonic() + 60.0)

    def run_until_it_is_ended(command, log, limit_s):
        logged = {"step": 25, "phase": 1, "phase_step": 25, "perf/tokens_per_s": 100.0, "train/loss": 1.0}
        logged |= {"perf/data_wait_pct": 0.0, "memory/max_allocated_gib": 1.0}
        log.with_suffix("").mkdir(parents=True)
        (log.with_suffix("") / "metrics.jsonl").write_text(json.dumps(logged) + "\n")
        rows.deadline -= limit_s
        raise subprocess.TimeoutExpired(command, limit_s)

    monkeypatch.setattr(trainer, "run", run_until_it_is_ended)
    monkeypatch.setattr(trainer, "data_of", lambda: tmp_path)
    trainer.measure(rows, torch.device("cpu"), TINY)
    assert "TimeoutExpired" in rows.rows["all phases"]["error"]
    assert rows.rows[trainer.PHASES[0]]["tokens_per_s"] == 100
    assert "logged nothing" in rows.rows[trainer.PHASES[1]]["error"]
    assert rows.left_out == []


def write_run(folder, losses, weights):
    (folder / "checkpoints" / "step_00000002").mkdir(parents=True)
    (folder / "checkpoints" / "step_00000002" / "rank_00000.safetensors").write_text(weights)
    lines = [json.dumps({"step": step, "train/loss": loss}) + "\n" for step, loss in enumerate(losses, start=1)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


def test_resumed_run_is_compared_bit_by_bit(tmp_path):
    unbroken = write_run(tmp_path / "a", [2.0, 1.0], "one")
    assert compare(unbroken, write_run(tmp_path / "b", [2.0, 1.0], "one"))["passes"] is True
    other = compare(unbroken, write_run(tmp_path / "c", [2.0, 1.0 + 2**-50], "one"))
    assert (other["passes"], "train/loss at step 2" in other["first_difference"]) == (False, True)
    assert "weights" in compare(unbroken, write_run(tmp_path / "d", [2.0, 1.0], "two"))["first_difference"]
    assert "None" in compare(unbroken, write_run(tmp_path / "e", [2.0], "one"))["first_difference"]
    empty = [write_run(tmp_path / name, [], "one") for name in ("f", "g")]
    assert compare(*empty)["first_difference"] == "nothing was logged or saved"


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_parts_that_need_no_shards_run_on_a_cpu(tmp_path):
    parts = ("parity", "tuning", "training", "products", "repeats", "ops")
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--parts", ",".join(parts)]
    command += ["--output", str(tmp_path), "--work", str(tmp_path / "work")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    report = json.loads((tmp_path / "bench_gpu.json").read_text())["parts"]
    assert {part: len(content["rows"]) > 3 for part, content in report.items()} == dict.fromkeys(parts, True)
    rows = {name: row for content in report.values() for name, row in content["rows"].items()}
    assert not [name for name, row in rows.items() if "error" in row or not row.get("passes", True)]
    assert "| row |" in (tmp_path / "bench_gpu.md").read_text()


def test_repeats_name_the_tensors_that_differ():
    calls = iter(range(5))

    def run():
        return {"same": torch.ones(3), "other": torch.full((3,), float(next(calls) == 3))}

    row = count_differences(run, 5)
    assert row == {"runs": 5, "tensors": 2, "passes": False, "differing": {"other": 1}}


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_parity_compares_the_gradients_of_embeddings_that_a_card_takes(monkeypatch, factor):
    def lookup(ids_T, table_RE):  # without a GPU the op would take torch's way
        return op._Embedding.apply(ids_T, table_RE, gradient_sum_of(table_RE))

    backward = op._Embedding.backward
    monkeypatch.setattr(op._Embedding, "backward", staticmethod(lambda ctx, grad: backward(ctx, factor * grad)))
    monkeypatch.setattr(embedding_problem, "embedding", lookup)
    found = parity_problems(TINY, torch.Generator().manual_seed(0))
    labels = [label for label in found if label.startswith("embedding")]
    assert labels == [f"embedding {rows}x64{end}" for rows in (2, 512) for end in ("", " with a sum")]
    for label in labels:
        for dtype in DTYPES:
            outcome = compare_one("embedding", label, replace(found[label], tolerance=TOLERANCE), "auto", dtype)
            assert (outcome.passes, outcome.worst) == (factor == 1.0, "gradient"), str(outcome)
