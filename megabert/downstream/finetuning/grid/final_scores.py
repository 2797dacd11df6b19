"""Scores on test sets: once, with the models of the choice, which the evaluation set alone has made."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from megabert.downstream.finetuning.grid.cells import Cell, Grid, Setting
from megabert.downstream.finetuning.grid.results import GridResult, SetResult, TestScore, cell_folder, read_grid
from megabert.downstream.finetuning.results import RESULT_NAME, SUMMARY_NAME, deviation, over_seeds, seed_folder
from megabert.downstream.finetuning.saved_model import rescore
from megabert.foundation.errors import CheckpointError
from megabert.foundation.files import sha256_file
from megabert.observability.logs import logger


def with_earlier_results(
    grid: Grid,
    result: GridResult,
    output_dir: Path,
    tests: Mapping[str, Path | None],
    device: Literal["auto", "cpu", "cuda"],
) -> GridResult:
    """Add the results that the folder holds of sets that this call left out, and score each set's test file.

    A test score that the folder holds of the same models and file is kept.

    Args:
        grid: The grid.
        result: Its choices.
        output_dir: The grid's folder.
        tests: The test file of each set.
        device: The device to score on.

    Raises:
        DataError: A test file is wrong.
    """
    before = _results_before(output_dir)
    scored = {**before, **result.sets}
    for labelled in grid.sets:
        own, path = result.sets[labelled.name], tests[labelled.name]
        if path is None or own.chosen is None:
            continue
        setting = Setting(own.chosen.learning_rate, own.chosen.epochs)
        cells = [Cell(labelled, setting, seed) for seed in own.chosen.seeds]
        source = _source(cells, path, output_dir)
        kept = before[labelled.name].test if labelled.name in before else None
        if kept is None or {name: vars(kept)[name] for name in source} != source:
            models = [_folder(cell, output_dir) / "model" for cell in cells]
            kept = TestScore(**source, **_score(models, path, device))
        scored[labelled.name] = replace(own, test=kept)
    return GridResult(sets=scored)


def _results_before(output_dir: Path) -> dict[str, SetResult]:
    """Return the results that a folder holds; damaged ones are made anew, of the sets that this call names."""
    if not (output_dir / SUMMARY_NAME).is_file():
        return {}
    try:
        return read_grid(output_dir).sets
    except CheckpointError as error:
        logger.warning("%s The test sets are scored again; sets left out of this call return once named.", error)
        return {}


def _source(cells: Sequence[Cell], path: Path, output_dir: Path) -> dict[str, Any]:
    """Return the fields of a test score that name its file and its models.

    A model is named by its cell's result: one that is trained again has another, with other times.
    """
    return {
        "sha256": sha256_file(path),
        "cells": [cell.name for cell in cells],
        "results": [sha256_file(_folder(cell, output_dir) / RESULT_NAME) for cell in cells],
    }


def _score(models: Sequence[Path], path: Path, device: Literal["auto", "cpu", "cuda"]) -> dict[str, Any]:
    """Return the fields of a test score that its models give."""
    logger.info("%s: the test set is scored with the choice", path)
    scores = [rescore(model, path, device=device) for model in models]
    metrics = [{path.stem: one.metrics} for one in scores]
    return {
        "mean": over_seeds(metrics, statistics.fmean),
        "deviation": over_seeds(metrics, deviation),
        "baseline": {path.stem: scores[0].baseline},
    }


def _folder(cell: Cell, output_dir: Path) -> Path:
    return seed_folder(cell_folder(output_dir, cell), cell.seed)
