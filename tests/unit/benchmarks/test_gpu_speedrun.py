"""The speed run: its archive, its steps with stand-ins for the programs, and its row."""

import json
import lzma
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from benchmarks.gpu import speedrun

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "gpu" / "speedrun.sh"
PROGRAM = """\
#!/usr/bin/env bash
# Stands for Python: it notes its arguments; a training waits to be killed, every one if LATE is set.
echo "$*" >>"$CALLS"
case "$*" in
  *"megabert pretrain"*)
    [ -z "${LATE:-}" ] && [ -e "$WORK/run" ] && exit "${CODE:-0}"
    mkdir -p "$WORK/run" && echo '{"step": 15, "perf/step_s": 1}' >"$WORK/run/metrics.jsonl" && exec sleep 60 ;;
  *random-weights*) [ -z "${LATE:-}" ] || exec sleep 60 ;;
esac
"""


def run_with_stand_ins(folder: Path, **settings: str) -> tuple[subprocess.CompletedProcess, list[str]]:
    """Run the script; return its end, and the verbs that it called, in order."""
    program = folder / "python"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    places = {"PYTHON": str(program), "WORK": str(folder / "work"), "CALLS": str(folder / "calls")}
    command = ["bash", str(SCRIPT), str(folder / "out"), "--tiny"]
    done = subprocess.run(command, env=os.environ | places | settings, capture_output=True, text=True, timeout=60)
    return done, [line.split()[2] for line in (folder / "calls").read_text().splitlines()]


def test_the_training_is_killed_and_resumed_and_both_starts_are_fine_tuned(tmp_path):
    done, verbs = run_with_stand_ins(tmp_path)
    assert done.returncode == 0, done.stderr
    assert verbs[:4] == ["-e", "pretrain", "pretrain", "export"]
    assert verbs[4:] == ["finetune", "finetune", "row"]
    assert not (tmp_path / "work" / "cut").exists()


def test_late_steps_are_cut_and_named_and_the_row_is_written(tmp_path):
    done, verbs = run_with_stand_ins(tmp_path, LATE="1", DEADLINE="6")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "work" / "cut").read_text().split() == ["training", "random"]
    assert verbs[-1] == "row"


def test_a_step_that_fails_ends_the_run_with_its_code(tmp_path):
    done, verbs = run_with_stand_ins(tmp_path, CODE="4")
    assert (done.returncode, verbs[-1]) == (4, "pretrain")


def test_the_row_counts_repeated_steps_once_and_has_none_for_cut_steps(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "environment.json").write_text('{"devices": ["a card"]}')
    steps = [(10, 2.0, 50.0), (20, 2.0, 50.0), (20, 1.0, 100.0), (30, 1.0, 100.0)]
    rows = [{"step": step, "perf/step_s": s, "perf/tokens_per_s": tokens} for step, s, tokens in steps]
    rows.insert(2, {"step": 20, "eval/mlm_loss": 3.5})
    (run / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "results.json").write_text('{"mean": {"test": {"accuracy": 0.5}}}')
    (tmp_path / "cut").write_text("random\n")
    row = speedrun.row(tmp_path, 90.0)
    assert (row["card"], row["minutes"], row["steps"]) == ("a card", 1.5, 30)
    assert (row["tokens"], row["tokens_per_s"], row["held_out_loss"]) == (3000, 75, 3.5)
    assert (row["snli_accuracy"], row["snli_accuracy_random"], row["cut"]) == (0.5, None, ["random"])


def test_the_archive_holds_shards_and_labelled_pairs_of_the_given_texts(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(speedrun, "call", lambda *words: calls.append(list(map(str, words))))
    (tmp_path / "work" / "data" / "instances").mkdir(parents=True)
    pair = {"sentence1": "a dog", "sentence2": "it", "gold_label": "neutral"}
    for name in ("train", "test"):
        rows = [pair | {"pairID": "1"}, pair | {"gold_label": "-"}]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    words = ["speedrun", "pack", "a.jsonl", "--snli", str(tmp_path), "--vocab-size", "99"]
    places = ["--work", str(tmp_path / "work"), "--archive", str(tmp_path / "packed.tar.xz")]
    monkeypatch.setattr("sys.argv", words + places)
    speedrun.main()
    assert calls[0][:6] == ["data_prep", "build", "--for", "speedrun", "--input", "a.jsonl"]
    assert calls[0][-2:] == ["--vocab-size", "99"]
    with lzma.open(tmp_path / "packed.tar.xz") as packed, tarfile.open(fileobj=packed) as archive:
        assert sorted(archive.getnames()) == ["instances", "snli", "snli/test.jsonl", "snli/train.jsonl"]
        assert json.loads(archive.extractfile("snli/train.jsonl").read()) == pair
    monkeypatch.setattr(speedrun, "MOST_MB", 0)
    with pytest.raises(SystemExit, match=r"is above 0 MB\. Give less text"):
        speedrun.main()
