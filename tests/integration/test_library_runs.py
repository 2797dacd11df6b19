"""The pipeline from Python: its functions give what the commands give, several times in one process."""

import gc
import json
import logging
import re
import runpy
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import transformers
from forked.client import run_command
from support.bundled_corpus import small_corpus
from support.runs import TINY, Run, assert_equal_runs, finished

from megabert import library
from megabert.observability.metrics import MetricWriter
from megabert.tokens.shards.shard_set import ShardSet
from megabert.training.meter import Meter
from megabert.training.recovery.watchdog import Watchdog

EXAMPLES = Path(__file__).parents[2] / "examples"


def settings_of(shards):
    return {**TINY, "data.path": str(shards)}


def train(run_dir, shards, **functions):
    return library.pretrain(run_dir=run_dir, device="cpu", **functions, **settings_of(shards))


def engines():
    return [one for one in gc.get_objects() if type(one).__name__ in ("Engine", "DeepSpeedEngine")]


@pytest.fixture(scope="module")
def first_run(shards, tmp_path_factory):
    """A run of this process that nothing interrupts."""
    return train(tmp_path_factory.mktemp("library") / "first", shards)


def test_runs_of_one_process_equal_the_command_print_nothing_and_leave_no_engine(first_run, shards, tmp_path, capfd):
    log = logging.getLogger("megabert")
    before = (log.level, log.propagate, log.handlers[:])
    capfd.readouterr()
    second = train(tmp_path / "second", shards)
    assert engines() == []
    command = finished(tmp_path / "command", shards)
    for run in (first_run, second):
        steps, losses = run.metric("train/loss")
        assert dict(zip(steps.tolist(), losses.tolist(), strict=True)) == command.losses()
        assert (run.is_done, run.checkpoints[-1], run.config["micro_batch_tokens"]) == (True, 13, 512)
        assert_equal_runs(Run(run.folder, shards), command)
    assert library.load_run(command.run_dir).table() == command.rows()
    assert capfd.readouterr() == ("", "")
    assert (log.level, log.propagate, log.handlers) == before


def test_functions_of_a_run_in_a_thread_get_every_row_score_and_checkpoint(shards, tmp_path):
    got: dict[str, list] = {"step": [], "validation": [], "checkpoint": []}
    functions = {
        "on_step": lambda step, row: got["step"].append((step, row["train/loss"])),
        "on_validation": lambda step, scores: got["validation"].append((step, scores["eval/mlm_loss"])),
        "on_checkpoint": lambda step, folder: got["checkpoint"].append((step, (folder / "manifest.json").is_file())),
    }
    with ThreadPoolExecutor(1) as pool:  # a training may run in a thread
        run = pool.submit(train, tmp_path / "run", shards, **functions).result()
    for name, metric in (("step", "train/loss"), ("validation", "eval/mlm_loss")):
        assert got[name] == list(zip(*(values.tolist() for values in run.metric(metric)), strict=True))
    assert got["checkpoint"] == [(step, True) for step in (0, 3, 6, 8, 9, 12, 13)]


def test_functions_and_a_sync_of_metrics_have_the_limit_of_a_checkpoint(shards, tmp_path, monkeypatch):
    limits: list[tuple] = []
    synced: list[tuple] = []
    expect, flush = Watchdog.expect, MetricWriter.flush
    monkeypatch.setattr(Watchdog, "expect", lambda *words: (limits.append(words[1:]), expect(*words)))
    monkeypatch.setattr(MetricWriter, "flush", lambda writer: (synced.append(limits[-1]), flush(writer)))
    train(tmp_path / "run", shards, on_checkpoint=lambda step, folder: None)
    assert {words[1] for words in limits if words[0] == "making a step"} == {1800.0}
    assert set(synced) == {("writing a checkpoint",)}


def test_a_failing_function_ends_the_run_saved_and_it_is_resumed(first_run, shards, tmp_path):
    def fail(step, row):
        if step == 5:
            raise ValueError("no such project")

    message = r"on_step of step 5: ValueError: no such project\. The run is saved"
    with pytest.raises(library.MegabertError, match=message):
        train(tmp_path / "run", shards, on_step=fail)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    stopped = library.load_run(tmp_path / "run")
    assert (status["status"], stopped.is_done, stopped.checkpoints[-1]) == ("failed", False, status["step"])
    assert 5 <= status["step"] <= 6  # the next batch may be on its way
    run = library.resume(tmp_path / "run", device="cpu")
    assert run.is_done
    assert_equal_runs(Run(run.folder, shards), Run(first_run.folder, shards))


def test_first_step_of_a_start_is_in_no_rate_of_others_and_predicts_no_time(shards, tmp_path, monkeypatch):
    with pytest.raises(library.MegabertError):
        train(tmp_path / "run", shards, on_step=lambda step, row: 1 // (5 - step))
    stopped = library.load_run(tmp_path / "run").checkpoints[-1]
    counts, read = [], Meter.read
    monkeypatch.setattr(Meter, "read", lambda meter: (counts.append(meter._steps), read(meter))[1])
    shutil.copytree(tmp_path / "run", tmp_path / "each")
    library.resume(tmp_path / "run", device="cpu", **{"logging.every_steps": 4})
    assert counts == [8 - (stopped + 1), 1, 3, 1]  # rows of the last step of phase 1, then of 9, 12 and 13
    library.resume(tmp_path / "each", device="cpu")
    lines = (tmp_path / "each" / "logs" / "rank_000.log").read_text().splitlines()
    told = {step: "left" in line for line in lines for step in re.findall(r" step (\d+)/\d+ \(", line)}
    assert [told[str(step)] for step in (stopped + 1, stopped + 2)] == [False, True]


def test_ctrl_c_saves_and_gives_the_caller_its_handler_back(shards, tmp_path):
    def interrupt(step, row):
        if step == 5:
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores the signal
    try:
        with pytest.raises(KeyboardInterrupt, match="is saved; the same call continues it"):
            train(tmp_path / "run", shards, on_step=interrupt)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert (status["status"], library.load_run(tmp_path / "run").checkpoints[-1]) == ("stopped", status["step"])
    assert 5 <= status["step"] <= 6  # the next batch may be on its way
    assert library.resume(tmp_path / "run", device="cpu").is_done


def test_a_wrong_setting_or_folder_is_refused(shards, tmp_path):
    with pytest.raises(library.ConfigError, match="learning_rate"):
        library.pretrain(run_dir=tmp_path / "run", data={"path": str(shards)}, **{"phases.0.lerning_rate": 1.0})
    with pytest.raises(library.ConfigError, match="muon-heads has no effect"):
        library.pretrain(run_dir=tmp_path / "run", data={"path": str(shards)}, optimizer={"muon_heads": True})
    assert not (tmp_path / "run").exists()
    for function in (library.load_run, library.resume):
        with pytest.raises(library.CheckpointError, match="it is no run folder"):
            function(tmp_path)


def test_ranks_of_a_launcher_make_one_run_after_the_other(uninterrupted_run, shards, tmp_path):
    words = [str(tmp_path), repr(settings_of(shards))]
    code = run_command("integration.programs.two_runs", words, tmp_path / "out", ranks=2)
    assert code == 0, (tmp_path / "out").read_text()[-4000:]
    for name in ("first", "second"):
        assert [(tmp_path / f"{name}-{rank}").read_text() for rank in range(2)] == ["True 13"] * 2
        assert_equal_runs(Run(tmp_path / name, shards), uninterrupted_run)


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_build_and_an_export_have_the_bytes_of_the_commands(corpus, uninterrupted_run, tmp_path, capfd):
    settings = ["--lengths", "64", "128", "--vocab-size", "600", "--validation-share", "0.2", "--workers", "1"]
    words = ["build", "--input", str(corpus), "--output", str(tmp_path / "data"), *settings]
    assert run_command("data_prep", words, tmp_path / "out") == 0, (tmp_path / "out").read_text()
    fields = {"lengths": [64, 128], "vocab_size": 600, "validation_share": 0.2}
    capfd.readouterr()
    made = library.build([str(corpus)], output_dir=tmp_path / "ours", workers=1, **fields)
    assert capfd.readouterr() == ("", "")
    assert (set(made.instances), made.instances[64]["train"] > 0) == ({64, 128}, True)
    ours = files_of(made.folder)
    theirs = files_of(tmp_path / "data")
    for files in (ours, theirs):
        del files[".lock"]  # names the process
    assert ours == theirs
    words = ["export", str(uninterrupted_run.run_dir), "--to", str(tmp_path / "model"), "--checkpoint", "best"]
    assert run_command("megabert", words, tmp_path / "out") == 0, (tmp_path / "out").read_text()
    folder = library.export(uninterrupted_run.run_dir, output_dir=tmp_path / "own", checkpoint="best")
    assert files_of(folder) == files_of(tmp_path / "model")


def test_a_fine_tuning_has_the_weights_and_scores_of_the_command(uninterrupted_run, tmp_path, capfd):
    rows = [("the whale rose", "sea"), ("the captain sailed", "sea"), ("the lady spoke", "land"), ("a garden", "land")]
    for name in ("train", "dev"):
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    model, out = str(uninterrupted_run.run_dir), tmp_path / "theirs"
    words = ["finetune", "classification", "--model", model, "--data", str(tmp_path), "--output-dir", str(out)]
    flags = ["--epochs", "2", "--learning-rate", "0.001", "--device", "cpu"]
    assert run_command("megabert", words + flags, tmp_path / "out") == 0, (tmp_path / "out").read_text()
    settings = {"epochs": 2, "learning_rate": 1e-3, "device": "cpu"}
    capfd.readouterr()
    summary = library.fine_tune("classification", model=model, data=tmp_path, output_dir=tmp_path / "ours", **settings)
    assert (capfd.readouterr(), engines()) == (("", ""), [])
    theirs, ours = (files_of(folder / "seed_42") for folder in (out, tmp_path / "ours"))
    names = [name for name in theirs if not name.startswith("tb/") and name != "result.json"]
    assert {"model/model.safetensors", "metrics.jsonl", "predictions_dev.jsonl"} <= set(names)
    assert [name for name in names if ours[name] != theirs[name]] == []
    recorded = json.loads((out / "results.json").read_text())
    assert (summary.mean, summary.baseline) == (recorded["mean"], recorded["baseline"])


def test_a_model_is_scored_as_a_run_and_as_its_export(first_run, corpus, shards, tmp_path):
    with pytest.raises(library.ConfigError, match="vocab_size"):
        library.build([str(corpus)], output_dir=tmp_path / "other", vocab_sise=600)
    folder = library.export(first_run.folder, output_dir=tmp_path / "model", checkpoint="best", languages=["en"])
    assert transformers.AutoModelForMaskedLM.from_pretrained(folder).config.hidden_size == 32
    held_out = shards / "instances" / "128"
    score = library.evaluate(folder, data=held_out, task="mlm", device="cpu")
    again = library.evaluate(first_run.folder, data=held_out, task="mlm", checkpoint="best", device="cpu")
    assert score == again
    assert score.examples == ShardSet.open(held_out, "validation").num_rows
    assert 0 < score.scores["accuracy"] < 1


def test_example_of_three_rates(tmp_path, monkeypatch, capsys):
    text = (EXAMPLES / "three_rates.py").read_text()
    assert len(text.splitlines()) <= 30
    (tmp_path / "three_rates.py").write_text(
        text.replace('"steps": 300', '"steps": 4').replace('steps": 50', 'steps": 2')
    )
    (tmp_path / "corpus").mkdir()
    small_corpus(tmp_path / "corpus").rename(tmp_path / "corpus" / "public_domain.jsonl")
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path("three_rates.py")
    assert [run.metric("eval/mlm_loss")[0].tolist() for run in names["runs"]] == [[2, 4]] * 3
    assert re.search(r"rate_\S+: accuracy \d+\.\d+, constant \d+\.\d+", capsys.readouterr().out)
    assert (tmp_path / "runs" / "three_rates" / "losses.png").stat().st_size > 0
