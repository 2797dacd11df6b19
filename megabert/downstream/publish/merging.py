"""The weighted mean of several models' weights.

Decays of one run that begin at the same checkpoint end in the same valley of the loss, and their mean may be better
than each of them (Wortsman et al. 2022, "Model soups"; mmBERT merges its three decays).
"""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from megabert.downstream.export.config_json import ARCHITECTURES, read_object
from megabert.downstream.export.export_folder import open_export
from megabert.downstream.export.huggingface import TaskHead, write_model_files
from megabert.downstream.export.model_card import ModelCard
from megabert.downstream.export.model_folder import find_model, folder_and_checkpoint
from megabert.downstream.export.sources import Source, open_source
from megabert.downstream.export.vector_form import MODULES_FILE
from megabert.foundation.errors import CheckpointError, ConfigError
from megabert.models.convert import UNREAD_POSITIONS

IDLE = re.compile("preset|initializer_range|.*dropout.*")
"""Fields of a model that change nothing in the meaning of its weights."""
_TASK = re.compile("For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice)$")
MERGE = "merge"
"""The merge's own name among the scores."""


class MergePart(NamedTuple):
    """A model that is merged."""

    name: str
    """Its name on the command line, such as ``runs/demo@4000``; with a number if that is taken."""
    source: Source
    share: float
    """Its share of the mean; all shares add up to 1."""


def open_parts(names: Sequence[str], weights: Sequence[float] | None = None) -> list[MergePart]:
    """Open the models of a merge.

    Args:
        names: Run folders, with a checkpoint as ``RUN@STEP`` or without one, or Hugging Face folders; two or more.
        weights: How much each one counts, in proportion; None counts all alike.

    Raises:
        ConfigError: There are fewer than two models, not as many weights as models, no weight above 0, or the models
            have other sizes or another tokenizer.
    """
    if len(names) < 2:
        raise ConfigError(f"{names[0]}: one model is no merge. Name two or more, such as RUN@4000 RUN@5000.")
    if weights is not None and len(weights) != len(names):
        raise ConfigError(f"--weights: {len(weights)} for {len(names)} models. Give one per model, in their order.")
    weights = weights or [1.0] * len(names)
    if not sum(weights) > 0:
        raise ConfigError("--weights: all are 0. Give one above 0.")
    places = [folder_and_checkpoint(name) for name in names]
    for folder, _ in places:
        _refuse_what_is_lost(folder)
    sources = [open_source(*place) for place in places]
    for name, source in zip(names[1:], sources[1:], strict=True):
        _check_alike((names[0], sources[0]), (name, source))
    shares = [weight / sum(weights) for weight in weights]
    titles = _distinct(names)
    return [MergePart(title, source, share) for title, source, share in zip(titles, sources, shares, strict=True)]


def _refuse_what_is_lost(name: str) -> None:
    """Refuse a fine-tuned model, whose head would be lost, and one whose modules would be."""
    path = find_model(name) / "config.json"
    if path.with_name(MODULES_FILE).is_file():
        raise ConfigError(
            f"{name}: has {MODULES_FILE}, and a merge has no modules of sentence-transformers. Merge copies without "
            "that file, and add vectors to the merge: megabert export MERGE --to FOLDER --sentence-transformers KIND."
        )
    architectures = read_object(path).get("architectures") if path.is_file() else None
    head = next((one for one in architectures or () if isinstance(one, str) and _TASK.search(one)), None)
    if head is not None:
        raise ConfigError(
            f"{name}: is a {head}, and a merge has no head of a task. Merge models as they were pre-trained, and "
            "fine-tune the merge."
        )


def _distinct(names: Sequence[str]) -> list[str]:
    """Return names that can be keys: one that is taken, by an earlier model or by the merge, gets a number."""
    titles: list[str] = []
    for name in names:
        candidates = chain([name], (f"{name} ({number})" for number in count(2)))
        titles.append(next(title for title in candidates if title not in (MERGE, *titles)))
    return titles


def _check_alike(first: tuple[str, Source], other: tuple[str, Source]) -> None:
    """Refuse models whose weights mean different things."""
    for field in fields(first[1].model):
        values = [source.model.stated(field.name) for _, source in (first, other)]
        if not IDLE.fullmatch(field.name) and values[0] != values[1]:
            stated = " and ".join(
                f"{field.name}={value} in {name}" for value, (name, _) in zip(values, (first, other), strict=True)
            )
            raise ConfigError(f"{stated}: only models of the same sizes can be merged. Leave one out.")
    digests = [source.weights.tokenizer_sha256 for _, source in (first, other)]
    if digests[0] != digests[1]:
        raise ConfigError(
            f"{first[0]} has the tokenizer {digests[0][:12]}, {other[0]} has {digests[1][:12]} (SHA-256): their "
            "embeddings belong to other pieces. Merge models of one tokenizer."
        )


def merge_parts(parts: Sequence[MergePart]) -> Source:
    """Return the weighted mean, summed in float64, as a model that can be scored and written.

    One model at a time is in memory besides the sum.

    Raises:
        CheckpointError: A checkpoint cannot be read, or one model has heads that another one lacks.
    """
    sums: dict[str, Tensor] = {}
    for part in parts:
        state = part.source.weights.read()
        state.pop(UNREAD_POSITIONS, None)  # a run has none
        if sums and sums.keys() != state.keys():
            name = min(sums.keys() ^ state.keys())
            where = part.name if name in state else parts[0].name
            raise CheckpointError(f"only {where} has {name}. Merge models with the same heads.")
        for name, value in state.items():
            addend = value.double() * part.share
            sums[name] = sums[name] + addend if name in sums else addend
    mean = {name: value.to(torch.float32) for name, value in sums.items()}
    first = parts[0].source
    # Positions that one part has not been trained on are noise in the mean.
    known = [length for part in parts if (length := part.source.trained_length())]
    weights = replace(first.weights, source="the merge", read=lambda: dict(mean))
    return replace(first, weights=weights, trained_length=lambda: min(known, default=None))


def write_merge(folder: Path, merge: Source, parts: Sequence[MergePart], scores: dict[str, float]) -> None:
    """Write a merge in Hugging Face form, with a card that names its parts and their shares.

    Encoders without the heads of their pre-training give an encoder.

    Args:
        folder: A new or empty folder, or an earlier export.
        merge: The result of `merge_parts`.
        parts: The models of the mean.
        scores: Held-out loss of the merge and of each part by name; empty if none were scored.
    """
    state, masked_lm = merge.weights.read(), ARCHITECTURES[merge.model.family]["none"]
    is_bare = not any(name.startswith(("cls.predictions.", "discriminator_predictions.")) for name in state)
    card = ModelCard(
        name=MERGE,
        longest=merge.trained_length(),
        pipeline="feature-extraction" if is_bare else ModelCard.pipeline,
        description=f"The weighted mean of {len(parts)} encoders of the family {merge.model.traits.title}.",
        recipe={part.name: f"{part.share:.4f} of the mean" for part in parts},
        checkpoint={f"held-out loss of {name}": f"{loss:.4f}" for name, loss in scores.items()},
    )
    task = TaskHead(masked_lm.replace("ForMaskedLM", "Model"), {}, {}) if is_bare else None
    pieces = merge.tokenizer_dir
    with open_export(folder) as new:
        write_model_files(new, state=state, config=merge.model, tokenizer_dir=pieces, card=card, task=task)
