"""Make a model of models/ from its texts: fetch, build, pre-train, export, score, write the card.

    python -m examples.models english --work WORK [--minutes 45]
    python -m examples.models english --work WORK --steps export scores card
    python -m examples.models english --work WORK -- --fork RUN@STEP

Arguments after -- are given to `megabert pretrain`.

Steps that are done are left alone, and a pre-training that was stopped or killed continues bit for bit, so the same
command may be given until the model is there. Texts, shards and checkpoints stay in WORK; the model and the log of the
stretches go to models/LANGUAGE. With more than one thread (OMP_NUM_THREADS) sums differ in their last bits.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from examples.models.card import write_card
from examples.models.export import export
from examples.models.scores import score
from examples.models.stretches import run_stretch
from examples.models.texts import LANGUAGES, build_config, fetch
from examples.models.tools import MODELS, Folders, call, folders_of

STEPS = ("texts", "build", "pretrain", "export", "scores", "card")


def build(language: str, folders: Folders, recipe: str) -> None:
    """Build vocabulary and shards for the recipe."""
    config = folders.texts.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(build_config(language, folders.texts), sort_keys=False, allow_unicode=True))
    words = ("--for", recipe, "--config", config, "--validation-share", "0.005", "--workers", "1")
    call("data_prep", "build", *words, "--output", folders.data)


def pretrain(folders: Folders, recipe: str, minutes: float | None, flags: Sequence[str]) -> None:
    """Begin or continue the pre-training; a stretch that does not reach the end ends the program with its exit code."""
    words = ("--recipe", recipe, "--data.path", folders.data, *flags)
    code = run_stretch(words, folders.run, folders.log, minutes=minutes)
    folders.model.mkdir(parents=True, exist_ok=True)
    shutil.copy(folders.log, folders.model)
    if code:
        raise SystemExit(code if code > 0 else 128 - code)


def main(words: Sequence[str] | None = None) -> None:
    """Run the steps that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language", choices=LANGUAGES)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="texts, shards, checkpoints")
    parser.add_argument("--models", type=Path, default=MODELS, metavar="DIR", help="where LANGUAGE is written")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, metavar="STEP", help=", ".join(STEPS))
    parser.add_argument("--minutes", type=float, metavar="N", help="stop the pre-training after so many")
    parser.add_argument("--recipe", metavar="NAME", help="name or file (default: LANGUAGE_small)")
    given = [*(sys.argv[1:] if words is None else words), "--"]
    cut = given.index("--")
    options, flags = parser.parse_args(given[:cut]), given[cut + 1 : -1]
    language = options.language
    recipe = options.recipe or f"{language}_small"
    folders = folders_of(language, options.work.resolve(), options.models.resolve())
    actions = {
        "texts": lambda: fetch(language, folders.texts, packages=folders.packages),
        "build": lambda: build(language, folders, recipe),
        "pretrain": lambda: pretrain(folders, recipe, options.minutes, flags),
        "export": lambda: export(language, folders),
        "scores": lambda: score(language, folders),
        "card": lambda: write_card(language, folders),
    }
    for step in STEPS:
        if step in options.steps:
            print(f"== {step}", file=sys.stderr, flush=True)
            try:
                folders.texts.mkdir(parents=True, exist_ok=True)
                actions[step]()
            except OSError as error:
                raise SystemExit(f"{step}: {error}. Check --work and --models. Did the steps before run?") from error


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
