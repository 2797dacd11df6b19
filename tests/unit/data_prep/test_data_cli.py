import contextlib
import subprocess
import sys

import pytest
from unit.data_prep.conftest import write_jsonl

from data_prep.cli import main
from megabert import __version__
from megabert.tokens.shards.folder import read_manifest


def test_version_is_that_of_megabert(megabert_data):
    assert megabert_data("--version").out == f"{__version__}\n"


def test_module_runs_and_help_needs_neither_torch_nor_the_tokenizer():
    code = """
import sys
from data_prep.cli import main
main(["--help"])
print("torch" in sys.modules, "tokenizers" in sys.modules)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown.splitlines()[-1] == "False False"


def test_build_prints_a_summary_on_stdout_and_progress_on_stderr(texts, tmp_path, megabert_data):
    write_jsonl(tmp_path / "in.jsonl", texts[:40])
    flags = "--vocab-size 800 --lengths 64 --dupe-factor 1 --workers 1 --validation-share 0"
    files = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out")]
    captured = megabert_data("build", *files, *flags.split())
    for word in ("documents 40", "sentences", "tokens", "[UNK]", "length 64 train", "random next", "shards"):
        assert word in captured.out
    assert "extract: " in captured.err
    assert "MB/s" in captured.err
    assert captured.err.count("warning: no document is held out") == 1
    text = read_manifest(tmp_path / "out" / "instances" / "64").statistics["text"]["train"]
    used = f"in a pass: {100 * text['used'] / text['tokens']:.2f}% of the text's tokens"
    assert 0.98 * text["tokens"] < text["used"] <= text["tokens"]
    assert used in captured.out
    shown = megabert_data("stats", tmp_path / "out").out
    assert "dropped, not counting the rules below: nothing" in shown
    assert used in shown


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ([], 5),
        (["--masking", "dynamic"], 5),
        (["--objective", "none"], 5),
        (["--objective", "none", "--masking", "dynamic"], 1),
        (["--objective", "none", "--masking", "dynamic", "--dupe-factor", "5"], 5),
    ],
)
def test_passes_without_pairs_and_masks_are_one_unless_they_are_asked_for(words, passes, megabert_data):
    printed = megabert_data("build", "--input", "a.txt", "--output", "out", "--print-config", *words).out
    assert f"dupe_factor: {passes}\n" in printed


def test_peek_shows_masks_in_place(built, megabert_data):
    shard = sorted((built.folder / "instances" / "64").glob("train-*.arrow"))[0]
    shown = megabert_data("peek", f"{shard}:3").out
    assert "A: [CLS]" in shown
    assert "{[MASK]<-" in shown
    assert "label " in shown
    assert "is not among 0 to" in megabert_data("peek", f"{shard}:9999999", code=3).err
    megabert_data("peek", shard, code=3)


def test_vocab_writes_a_tokenizer_once(texts, tmp_path, megabert_data):
    write_jsonl(tmp_path / "in.jsonl", texts[:30])
    arguments = ["vocab", "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "v"), "--vocab-size", "600"]
    assert "round trip" in megabert_data(*arguments).out
    assert (tmp_path / "v" / "vocab.txt").is_file()
    assert "not empty" in megabert_data(*arguments, code=3).err


def test_unknown_tokens_that_the_sample_missed_are_warned_of(texts, tokenizer_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("data_prep.steps.step2_vocabulary.require_fit", lambda report, where: None)
    write_jsonl(tmp_path / "in.jsonl", [text.replace("the", "\u4e16\u754c") for text in texts[:20]])
    flags = ["--tokenizer", str(tokenizer_folder), "--lengths", "64", "--dupe-factor", "1", "--validation-share", "0"]
    arguments = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out"), "--workers", "1"]
    assert main(["build", *arguments, *flags]) == 0
    assert "of the tokens are [UNK]" in capsys.readouterr().err


def test_plots_are_pictures(built, tmp_path, capsys):
    assert main(["stats", str(built.folder), "--plots", str(tmp_path / "plots")]) == 0
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert names == {"lengths-64.png", "lengths-128.png", "sources.png"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "plots").iterdir())
    assert "picture" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--clean", "duplicate_documents"), "clean.rules=duplicate_documents: compares all documents"),
        (("--seed", "1"), "--seed"),
    ],
)
def test_settings_that_change_nothing_of_a_vocabulary_are_refused(flags, message, tmp_path, capsys, megabert_data):
    write_jsonl(tmp_path / "in.jsonl", ["Some text."])
    with contextlib.suppress(SystemExit):
        assert main(["vocab", "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out"), *flags]) == 2
    assert message in capsys.readouterr().err
    file = tmp_path / "vocab.yaml"
    file.write_text("tokenizer: somewhere\n")
    said = megabert_data(
        "vocab", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out", "--config", file, code=2
    ).err
    assert "tokenizer=somewhere: says the vocabulary already" in said


def test_an_output_that_cannot_be_is_refused_before_the_training(tmp_path, capsys, monkeypatch):
    write_jsonl(tmp_path / "in.jsonl", ["Some text."])
    monkeypatch.setattr("data_prep.commands.vocab.train_vocabulary", None)
    assert main(["vocab", "--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "in.jsonl" / "out")]) == 3
    assert "Not a directory" in capsys.readouterr().err
