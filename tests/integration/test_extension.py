"""The example of an extension, installed in a virtualenv of its own: used, killed and resumed, refused without it."""

import json
import shutil
import subprocess
import sys
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from forked.client import ForkServer, environment_of_commands, run_command
from support.runs import Run, assert_equal_runs

EXAMPLE = Path(__file__).parents[2] / "examples" / "extension"
NORMED = {"optimizer.name": "normed", "optimizer.options.momentum": 0.8, "phases.0.learning_rate": 0.01}
GONE = "megabert-extension 0.1 (here: not installed). Install that: pip install megabert-extension==0.1"
CHECKS = """
from megabert.library import ConfigError, load_classifier
from megabert.optim.trial import check_optimizer
assert check_optimizer("normed", options={"momentum": 0.5}) < 1e-6
print(load_classifier("scores/seed_42/model").predict(["The whale rose out of the sea."])[0].label)
"""


class Environment:
    """A virtualenv and the commands in it. Below its own packages, the example until `uninstall`, it has this one's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, folder / "virtualenv" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "virtualenv"], check=True, timeout=300)
        (site,) = folder.glob("virtualenv/lib/python*/site-packages")
        (site / "parent.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
        (site / "checks_of_the_example.py").write_text(CHECKS)
        shutil.copytree(EXAMPLE, folder / "source")  # pip writes into it
        self.cold("pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", folder / "source")
        self.server: ForkServer | None = ForkServer(python=self.python)

    def uninstall(self) -> None:
        self.server.close()
        self.server = None  # from here on the usual one, which has never imported the example
        self.cold("pip", "uninstall", "-q", "--yes", "megabert-extension")

    def cold(self, module: str, *words: object, code: int = 0) -> str:
        """Return the output of a command in a process of its own, as a shell starts it."""
        done = subprocess.run(
            [self.python, "-m", module, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=environment_of_commands(),
            timeout=600,
        )
        assert done.returncode == code, f"{words}\n{done.stdout}"
        return done.stdout

    def run(self, module: str, words: list[str], output: Path, **wishes: object) -> int:
        return run_command(module, words, output, server=self.server, folder=self.folder, **wishes)

    def output(self, module: str, *words: object, code: int = 0) -> str:
        (output := self.folder / "output").unlink(missing_ok=True)
        assert self.run(module, [*map(str, words)], output) == code, f"{words}\n{output.read_text()}"
        return output.read_text()


@dataclass
class InstalledRun(Run):
    """A run in an environment."""

    environment: Environment | None = None

    def finish(self, timeout_s: float = 240) -> int:
        return self.environment.run("megabert", self.words(), self.output_path, ranks=self.ranks, timeout_s=timeout_s)

    def killed_after(self, step: int) -> int:
        """Return the exit code of a run whose ranks are killed once a step was logged."""
        codes = []
        thread = threading.Thread(target=lambda: codes.append(self.finish()))
        thread.start()
        self.wait_for_step(step, SimpleNamespace(poll=lambda: codes[0] if codes else None, returncode=codes))
        for process in psutil.Process(self.environment.server.pid).children(recursive=True):
            process.kill()
        thread.join()
        return codes[0]


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
    assert "cleaned by shouting" in environment.output("data_prep", *build)
    manifest = json.loads((tmp_path / "data" / "instances" / "64" / "manifest.json").read_text())
    assert manifest["versions"]["megabert-extension"] == "0.1"
    assert manifest["config"]["clean"]["options"] == {"shouting": {"most": 0.6}}
    assert "BUY NOW" in json.dumps(manifest["statistics"]["corpus"]["examples"]["shouting"])
    # The optimizer, on two ranks: killed and resumed, the run ends like one that nothing interrupted.
    whole, killed = (
        InstalledRun(tmp_path / name, tmp_path / "data", 2, flags=NORMED, environment=environment)
        for name in ("whole", "killed")
    )
    whole.finish_well()
    assert killed.killed_after(10) == -9
    assert len(killed.losses()) < 13
    killed.finish_well()
    assert_equal_runs(killed, whole)
    recorded = (whole.run_dir / "config.yaml").read_text()
    assert "  options:\n    momentum: 0.8\n  package: megabert-extension 0.1\n" in recorded
    # The task, from the exported model.
    environment.output("megabert", "export", "whole", "--to", "model")
    tune = ["finetune", "passages", "--model", "model", "--data", labelled(tmp_path / "books.csv")]
    tune += ["--output-dir", "scores", "--epochs", 1]
    assert "by_characters" in environment.output("megabert", *tune)
    evaluate = ["evaluate", "--model", "scores/seed_42/model", "--data", tmp_path / "books.csv"]
    assert "by_characters" in environment.output("megabert", *evaluate)
    assert environment.output("checks_of_the_example").strip() in ("sea", "land")
    # Without the package nothing of this continues, and the run can still be exported.
    environment.uninstall()
    for place, module, words in (
        (killed.run_dir, "megabert", killed.words()),
        ("data", "data_prep", build),
        ("scores", "megabert", tune),
    ):
        assert f"ConfigError: {place} was begun with {GONE}" in environment.cold(module, *words, code=2)
    assert f"task passages was begun with {GONE}" in environment.output("megabert", *evaluate, code=2)
    environment.output("megabert", "export", "whole", "--to", "again")
