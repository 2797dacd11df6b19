import subprocess
import sys

import pytest
from unit.data_prep.conftest import write_jsonl

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


def test_build_prints_a_summary_on_stdout_and_progress_on_stderr(texts, tmp_path, small_build, megabert_data):
    captured = small_build("--vocab-size", "800", "--lengths", "64", texts=texts[:40])
    for word in ("documents 40", "sentences", "tokens", "[UNK]", "length 64 train", "random next", "shards"):
        assert word in captured.out
    assert "extract: " in captured.err
    assert "MB/s" in captured.err
    assert captured.err.count("warning: no document is held out") == 1
    text = read_manifest(tmp_path / "out" / "instances" / "64").statistics["text"]["train"]
    assert 0.98 * text["tokens"] < text["used"] <= text["tokens"]
    shown = megabert_data("stats", tmp_path / "out").out
    assert "dropped, not counting the rules below: nothing" in shown
    for printed in (captured.out, shown):
        assert f"in a pass: {100 * text['used'] / text['tokens']:.2f}% of the text's tokens" in printed


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


def test_unknown_tokens_that_the_sample_missed_are_warned_of(texts, tokenizer, small_build, monkeypatch):
    monkeypatch.setattr("data_prep.steps.step2_vocabulary.require_fit", lambda report, where: None)
    unknown = [text.replace("the", "\u4e16\u754c") for text in texts[:20]]
    assert "of the tokens are [UNK]" in small_build("--tokenizer", tokenizer, texts=unknown).err


def test_plots_are_pictures(built, tmp_path, megabert_data):
    assert "picture" in megabert_data("stats", built.folder, "--plots", tmp_path / "plots").out
    contents = {path.name: path.read_bytes() for path in (tmp_path / "plots").iterdir()}
    assert contents.keys() == {"lengths-64.png", "lengths-128.png", "sources.png"}
    assert all(content.startswith(b"\x89PNG") for content in contents.values())


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--clean", "duplicate_documents"), 2, "clean.rules=duplicate_documents: compares all documents"),
        (("--seed", "1"), 2, "--seed"),
        (("--config", "vocab.yaml"), 2, "tokenizer=somewhere: says the vocabulary already"),
        (("--output", "in.jsonl/out"), 3, "Not a directory"),
    ],
)
def test_what_no_vocabulary_can_have_is_refused_before_the_training(
    flags, code, message, tmp_path, monkeypatch, megabert_data
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("data_prep.commands.vocab.train_vocabulary", None)
    write_jsonl(tmp_path / "in.jsonl", ["Some text."])
    (tmp_path / "vocab.yaml").write_text("tokenizer: somewhere\n")
    output = [] if "--output" in flags else ["--output", "out"]
    assert message in megabert_data("vocab", "--input", "in.jsonl", *output, *flags, code=code).err
