"""Summaries and result folders of fine-tunings that nobody made."""

import json
from dataclasses import asdict
from pathlib import Path

from megabert.downstream.finetuning.seed_results import SETTINGS_NAME, SUMMARY_NAME, Summary


def summary(task: str, mean: dict, seeds: tuple[int, ...] = (42, 43), **fields: object) -> Summary:
    """Return the summary of a task, with these metrics by set; its baseline and deviation are the same numbers."""
    numbers = {"learning_rate": 3e-5, "examples_per_s": 1.0, "score": 0.5, "score_deviation": 0.0}
    sets = {"baseline": mean, "deviation": mean, "mean": mean}
    models = {"seeds": list(seeds), "stuck_seeds": [], "best_seed": seeds[0], "best_model": "model"}
    return Summary(**{"task": task, **numbers, **models, **sets, **fields})


def write_summary(folder: Path, content: Summary, settings: dict[str, object] | None = None) -> Path:
    """Write the folder of a finished fine-tuning, without its seeds, and return it."""
    folder.mkdir(parents=True)
    settings = {"task": content.task, "settings": settings or {}, "sha256": {}}
    (folder / SETTINGS_NAME).write_text(json.dumps(settings))
    (folder / SUMMARY_NAME).write_text(json.dumps(asdict(content)))
    return folder
