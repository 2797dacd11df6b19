"""The example of an extension, installed in a virtualenv: used, killed and resumed, and refused once it is gone."""

import json
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest
from forked.client import environment_of_commands
from support.runs import Run, assert_equal_runs, kill_everything

EXAMPLE = Path(__file__).parents[2] / "examples" / "extension"
NORMED = {"optimizer.name": "normed", "optimizer.options.momentum": 0.8, "phases.0.learning_rate": 0.01}
GONE = "megabert-extension 0.1 (here: not installed). Install that: pip install megabert-extension==0.1"
CHECKS = """
from megabert.library import ConfigError, load_classifier
from megabert.optim.trial import check_optimizer
assert check_optimizer("normed", options={"momentum": 0.5}) < 1e-6
print(load_classifier("scores/seed_42/model").predict(["The whale rose out of the sea."])[0].label)
"""


@dataclass
class InstalledRun(Run):
    """A run by the Python of an environment."""

    python: str = ""

    def command(self) -> list[str]:
        return [self.python, *super().command()[1:]]


class Environment:
    """A virtualenv that sees the packages of this one, and has the example."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        self.python = str(folder / "venv" / "bin" / "python")
        shown = self._output("-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        Path(shown.strip(), "this_environment.pth").write_text(line)
        shutil.copytree(EXAMPLE, folder / "source")  # pip writes into it
        self._output("-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", folder / "source")

    def _output(self, *words: object, code: int = 0) -> str:
        command = [self.python, *map(str, words)]
        done = subprocess.run(
            command, cwd=self.folder, env=environment_of_commands(), capture_output=True, text=True, timeout=900
        )
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr[-6000:]}"
        return done.stdout + done.stderr

    def megabert(self, *words: object, code: int = 0) -> str:
        return self._output("-m", "megabert", *words, code=code)

    def data(self, *words: object, code: int = 0) -> str:
        return self._output("-m", "data_prep", *words, code=code)

    def check(self, program: str) -> str:
        return self._output("-c", program)

    def uninstall(self) -> None:
        self._output("-m", "pip", "uninstall", "-q", "-y", "megabert-extension")


def labelled(path: Path) -> Path:
    texts = (("The whale came up out of the sea, number", "sea"), ("The law of the land, number", "land"))
    rows = [f'"{text} {number}",{label}' for number in range(20) for text, label in texts]
    path.write_text("\n".join(["text,book", *rows]) + "\n")
    return path


@pytest.mark.timeout(1800)
def test_the_example_is_used_resumed_and_refused_once_it_is_gone(corpus, tmp_path):
    environment = Environment(tmp_path)
    # The rule, in two workers: it drops the lines in capitals, and is recorded.
    documents = corpus.read_text().splitlines()
    shouted = json.loads(documents[0])
    shouted["text"] += "\n\nBUY NOW, AND BUY MORE THAN YOU NEED!\n"
    (tmp_path / "text.jsonl").write_text("\n".join([json.dumps(shouted), *documents[1:]]) + "\n")
    build = ["build", "--input", "text.jsonl", "--output", "data", "--vocab-size", 1000, "--lengths", 64, 128]
    build += ["--clean", "control_characters", "shouting", "--validation-share", 0.2, "--chunk-mib", 0.05]
    build += ["--clean.options.shouting.most", 0.6, "--workers", 2]
    assert "cleaned by shouting" in environment.data(*build)
    manifest = json.loads((tmp_path / "data" / "instances" / "64" / "manifest.json").read_text())
    assert manifest["versions"]["megabert-extension"] == "0.1"
    assert manifest["config"]["clean"]["options"] == {"shouting": {"most": 0.6}}
    assert "BUY NOW" in json.dumps(manifest["statistics"]["corpus"]["examples"]["shouting"])
    # The optimizer, on two ranks: killed and resumed, the run ends like one that nothing interrupted.
    whole, killed = (
        InstalledRun(tmp_path / name, tmp_path / "data", 2, "torchrun", NORMED, python=environment.python)
        for name in ("whole", "killed")
    )
    whole.finish_well()
    process = killed.start()
    try:
        killed.wait_for_step(10, process)
    finally:
        kill_everything(process)
    assert len(killed.losses()) < 13
    killed.finish_well()
    assert_equal_runs(killed, whole)
    recorded = (whole.run_dir / "config.yaml").read_text()
    assert "  options:\n    momentum: 0.8\n  package: megabert-extension 0.1\n" in recorded
    # The task, from the exported model.
    environment.megabert("export", "whole", "--to", "model")
    tune = ["finetune", "passages", "--model", "model", "--data", labelled(tmp_path / "books.csv")]
    tune += ["--output-dir", "scores", "--epochs", 1]
    assert "by_characters" in environment.megabert(*tune)
    evaluate = ["evaluate", "--model", "scores/seed_42/model", "--data", tmp_path / "books.csv"]
    assert "by_characters" in environment.megabert(*evaluate)
    assert environment.check(CHECKS).strip() in ("sea", "land")
    # Without the package nothing of this continues, and the run can still be exported.
    environment.uninstall()
    assert f"megabert: ConfigError: {killed.run_dir} was begun with {GONE}" in environment.megabert(
        *killed.words(), code=2
    )
    assert f"data was begun with {GONE}" in environment.data(*build, code=2)
    assert f"scores was begun with {GONE}" in environment.megabert(*tune, code=2)
    assert f"task passages was begun with {GONE}" in environment.megabert(*evaluate, code=2)
    environment.megabert("export", "whole", "--to", "again")
