"""Commands and code of docs/your_text.md, section "A BERT on books", run in order on a tenth of its text."""

import itertools
from pathlib import Path

from docs.shown_blocks import ROOT, blocks_of, run

SMALLER = {
    "--vocab-size 4096": "--vocab-size 1500",
    "--phases.0.steps 300": "--phases.0.steps 2",
    "--phases.1.steps 20": "--phases.1.steps 1",
    "--phases.2.steps 5": "--phases.2.steps 1",
    "--epochs 4": "--epochs 1 --max-eval-examples 8",
    "--max-instances 200": "--max-instances 8",
}
"""Sizes on the page, and smaller ones in their place."""


def test_page_runs_from_books_to_a_scored_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    corpus = ROOT / "examples" / "corpus" / "public_domain.jsonl"
    Path("examples/corpus").mkdir(parents=True)
    lines = corpus.read_text(encoding="utf-8").splitlines(keepends=True)
    Path("examples/corpus", corpus.name).write_text("".join(itertools.islice(lines, 0, None, 10)), encoding="utf-8")
    found = set()
    for language, text in blocks_of("your_text.md", "A BERT on books"):
        if language == "python":
            exec(compile(text, "docs/your_text.md", "exec", dont_inherit=True), {})
            continue
        for large, small in SMALLER.items():
            found |= {large} if large in text else set()
            text = text.replace(large, small)
        if "--random-weights" not in text:  # as the fine-tuning before it
            run(text, {"build": ["--workers", "1"]})
    assert found == SMALLER.keys()
    assert Path("models/own/config.json").exists()
    assert Path("guesses.jsonl").stat().st_size
    assert "held out" in capsys.readouterr().out
