"""Commands and code of docs/finetuning.md, section "From a CSV to a server", run in order with fewer examples."""

import json
import shlex
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from docs.shown_blocks import ROOT, blocks_of, run
from support.processes import free_port

from megabert.library import load_classifier

pytest.importorskip("onnxruntime", reason="pip install 'megabert[onnx]'")
FEWER = "--max-train-examples 64 --max-eval-examples 16 --epochs 1 --max-seq-length 32"


def ask(port: int, body: str) -> list[dict[str, float]]:
    for _ in range(600):  # the server starts in a thread
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}", body.encode()) as answer:
                return json.load(answer)
        except OSError:
            time.sleep(0.1)
    raise AssertionError("no answer")


def test_page_leads_from_a_csv_to_the_classifiers_own_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(ROOT / "examples")
    port, names = free_port(), {}
    for language, text in blocks_of("finetuning.md", "From a CSV to a server"):
        code = (
            compile(text.replace("8080", str(port)), "docs/finetuning.md", "exec", dont_inherit=True)
            if language == "python"
            else None
        )
        if text.startswith("curl"):
            body = shlex.split(text)[-1]
            shares = ask(port, body)
        elif code is None:
            run(text, {"finetune": FEWER.split()})
        elif "serve_forever" in text:
            threading.Thread(target=exec, args=(code, names), daemon=True).start()
        else:
            exec(code, names)
    names["server"].shutdown()
    names["server"].server_close()
    expected = load_classifier("runs/passages/seed_42/model").predict(json.loads(body))
    assert len(shares) == 2
    for mine, other in zip(shares, expected, strict=True):
        assert mine == pytest.approx(other.probabilities, abs=1e-4)
    assert {len(mine) for mine in shares} == {4}
