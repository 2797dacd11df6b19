"""Summaries of fine-tunings that nobody made."""

from megabert.downstream.finetuning.results import Summary


def summary(task: str, mean: dict, seeds: tuple[int, ...] = (42, 43), **fields: object) -> Summary:
    """Return the summary of a task, with these metrics by set; its baseline and deviation are the same numbers."""
    numbers = {"learning_rate": 3e-5, "examples_per_s": 1.0, "score": 0.5, "score_deviation": 0.0}
    sets = {"baseline": mean, "deviation": mean, "mean": mean}
    models = {"seeds": list(seeds), "stuck_seeds": [], "best_seed": seeds[0], "best_model": "model"}
    return Summary(**{"task": task, **numbers, **models, **sets, **fields})
