"""The model card: a README.md with the YAML header that model hubs read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from megabert.downstream.export.model_folder import SHIPPED_NAMES
from megabert.foundation.errors import ConfigError, MegabertError
from megabert.foundation.files import read_small
from megabert.settings.config.model import ModelConfig
from megabert.tokens.tokenization.huggingface import is_hub_name

DISCRIMINATORS = {"ElectraForPreTraining": "is_replaced = {}.logits > 0", "DebertaV2Model": "hidden = {}[0]"}
"""The pre-trained architectures that do not fill masks, and a line that shows how to use them."""
PIPELINES = {
    "MaskedLM": "fill-mask",
    "PreTraining": "fill-mask",
    "SequenceClassification": "text-classification",
    "TokenClassification": "token-classification",
    "QuestionAnswering": "question-answering",
    "MultipleChoice": "multiple-choice",
}
"""The hub's names for the tasks of classes, by the part of the class's name after ``For``."""


class Score(NamedTuple):
    """Metrics of a model on a set other than the held-out data of its run."""

    task: str
    """The hub's name for the kind of task, such as ``text-classification``."""
    name: str
    """The set, such as ``mrpc dev``."""
    metrics: Mapping[str, float]
    """Values as they are in files: accuracies are fractions."""
    note: str
    """How it was measured, in a few words."""
    published: tuple[str, str, str] | None = None
    """Id of a published set on the Hugging Face Hub, the part of it, and the metric that stands for it."""


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """The content of a card besides the model's sizes. Each mapping becomes a table, in its order."""

    name: str
    """Title of the card."""
    description: str = ""
    """A paragraph under the title, in Markdown."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The training data: corpus, documents, instances, tokens, tokenizer."""
    longest: int | None = None
    """Length that the model was trained at, at most; None if that is not known."""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """How it was trained: optimizer, phases, batch, precision, seed."""
    checkpoint: Mapping[str, Any] = field(default_factory=dict)
    """Which checkpoint it is: run, step, digest."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics on held-out data, such as ``eval/mlm_loss``."""
    languages: tuple[str, ...] = ()
    """Languages as ISO 639-1 codes."""
    license: str | None = None
    """License as an identifier in lower case, such as ``apache-2.0``; None says nothing about it."""
    base_model: str | None = None
    """The model that the weights started from; the header states it only if it is a name on the hub."""
    software: Mapping[str, str] = field(default_factory=dict)
    """Versions of the packages it was trained with."""
    pipeline: str = "fill-mask"
    """The hub's name for the model's task."""
    usage: str | None = None
    """Python lines under the heading "Use"; None loads the class, and fills a mask if that is its task."""
    symbols: tuple[str, str] | None = None
    """For a model of symbols instead of text: how they are written, in sentences, and an example."""
    gives_vectors: bool = False
    """Whether sentence-transformers loads the folder, for which hubs have a library and a task of their own."""
    metrics_of: tuple[str, str] = ("held-out", "held-out split of the training corpus")
    """Type and name of the data on which ``metrics`` were measured."""
    scores: tuple[Score, ...] = ()
    """Scores on further sets."""


def render_card(card: ModelCard, config: ModelConfig, *, architecture: str, parameters: int) -> str:
    """Return the text of README.md.

    Args:
        card: The content besides the model's sizes.
        config: The model's sizes and family.
        architecture: Class of ``transformers`` that has all exported weights.
        parameters: Number of exported parameters, tied ones counted once.
    """
    shape = {
        "family": config.family,
        "architecture": architecture,
        "parameters": f"{parameters:,}",
        "layers": config.num_hidden_layers,
        "hidden size": config.hidden_size,
        "attention heads": config.num_attention_heads,
        "feed-forward size": config.intermediate_size,
        "vocabulary": f"{config.vocab_size:,}",
        "longest sequence": f"{card.longest or config.max_position_embeddings}"
        + (f" trained, {config.max_position_embeddings} positions" if card.longest else ""),
    }
    # One table per section; empty ones are left out.
    sections = [
        ("Model", shape),
        ("Training data", card.data),
        ("Recipe", card.recipe),
        ("Checkpoint", card.checkpoint),
        ("Held-out metrics", card.metrics),
        ("Scores", {f"{one.name}: {', '.join(one.metrics)}": _shown(one) for one in card.scores}),
        ("Software", card.software),
    ]
    # The header for model hubs, the title, a word on the model, and how to use it.
    task = "replaced-token detection" if architecture in DISCRIMINATORS else card.pipeline
    header = f"---\n{_header(card, config.family, task)}---"
    blocks = [header, f"# {_plain(card.name)}", card.description, _usage(card, architecture)]
    blocks += [f"## {title}\n\n{_table(rows)}" for title, rows in sections if rows]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _header(card: ModelCard, family: str, task: str) -> str:
    results = []
    if card.metrics:
        name = "Masked language modelling" if card.pipeline == "fill-mask" else card.pipeline
        data = dict(zip(("type", "name"), card.metrics_of, strict=True))
        results.append(_result({"type": card.pipeline, "name": name}, data, card.metrics))
    for one in card.scores:
        data = {"type": one.name, "name": one.name}
        if one.published:
            data |= {"type": one.published[0], "config": one.published[1]}
        results.append(_result({"type": one.task, "name": one.note}, data, one.metrics))
    library, pipeline = "transformers", "feature-extraction" if task == "replaced-token detection" else task
    if card.gives_vectors:
        library, pipeline = "sentence-transformers", "sentence-similarity"
    base = card.base_model
    header: dict[str, Any] = {
        "library_name": library,
        "pipeline_tag": pipeline,
        "tags": [family, task, "megabert"],
        "base_model": base if base and base not in SHIPPED_NAMES and is_hub_name(base) else None,
        "language": list(card.languages),
        "license": card.license,
        "model-index": [{"name": card.name, "results": results}] if results else None,
    }
    stated = {name: value for name, value in header.items() if value}
    return yaml.safe_dump(stated, sort_keys=False, allow_unicode=True)


def _result(task: dict[str, str], data: dict[str, str], metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return an entry of ``model-index``."""
    values = [{"type": name, "value": float(value)} for name, value in metrics.items()]
    return {"task": task, "dataset": data, "metrics": values}


def _shown(score: Score) -> str:
    return f"{', '.join(f'{value:.4f}' for value in score.metrics.values())} ({score.note})"


def pipeline_of(architecture: str) -> str:
    """Return the hub's name for the task of a class of ``transformers``; an encoder without a head gives features."""
    return PIPELINES.get(architecture.partition("For")[2], "feature-extraction")


def render_eval_results(scores: tuple[Score, ...]) -> str | None:
    """Return the text of `export_folder.EVAL_RESULTS`, scores in points; None if no score is of a published set."""
    entries = [
        {
            "dataset": {"id": score.published[0], "task_id": score.published[1]},
            "value": round(100 * score.metrics[score.published[2]], 2),
            "notes": f"{score.published[2]} in points on {score.name}, {score.note}, with megabert",
        }
        for score in scores
        if score.published and score.published[2] in score.metrics
    ]
    return yaml.safe_dump(entries, sort_keys=False, allow_unicode=True) if entries else None


def check_facts(languages: Sequence[str], license: str | None, base_model: str | None = None) -> None:
    """Refuse what hubs would not take for a language, a license or a base model.

    Raises:
        ConfigError: A language is no ISO 639 code, the license no identifier, or the base model no name on the hub.
    """
    for code in languages:
        if not re.fullmatch(r"[a-z]{2,3}|multilingual|code", code):
            raise ConfigError(f"--language {code}: is no ISO 639 code in lower case, such as en or ko.")
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", license):
        raise ConfigError(f"--license {license}: is no identifier in lower case, such as apache-2.0, mit or other.")
    if base_model is not None and not is_hub_name(base_model):
        raise ConfigError(f"--base-model {base_model}: is a path here, or no name on the Hub. Write it as OWNER/NAME.")


def facts_of(folder: Path) -> dict[str, Any]:
    """Return languages and license that a model's own card states, as fields of a card; nothing if it has none."""
    try:
        _, header, _ = read_small(folder / "README.md").decode().split("---\n", 2)
        stated = yaml.safe_load(header)
    except (OSError, MegabertError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    stated = stated if isinstance(stated, dict) else {}
    languages, license = stated.get("language", []), stated.get("license")
    languages = [languages] if isinstance(languages, str) else languages
    is_list = isinstance(languages, list) and all(isinstance(code, str) for code in languages)
    return {"languages": tuple(languages) if is_list else (), "license": license if isinstance(license, str) else None}


def _usage(card: ModelCard, architecture: str) -> str:
    is_discriminator = architecture in DISCRIMINATORS
    # Of symbols: a class for pre-training may have other results than logits, such as a sentence objective's.
    class_name = "AutoModelForMaskedLM" if card.symbols and not is_discriminator else architecture
    fills_masks = card.pipeline == "fill-mask" and not is_discriminator and not card.symbols
    lines = [
        f"from transformers import AutoTokenizer, {class_name}{', pipeline' * fills_masks}",
        "",
        'folder = "."  # where this file lies',
        f"model = {class_name}.from_pretrained(folder)",
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
    ]
    text = '"The ship sailed over the cat."'
    if card.symbols:
        lines.insert(0, f"# {card.symbols[0]}")
        text = repr(card.symbols[1])
    if fills_masks:
        lines.append('pipeline("fill-mask", model=folder)(f"The ship sailed over the {tokenizer.mask_token}.")')
    elif card.symbols or is_discriminator:
        output = f'model(**tokenizer({text}, return_tensors="pt"))'
        lines.append(DISCRIMINATORS.get(architecture, "logits = {}.logits").format(output))
    usage = card.usage or "\n".join(lines)
    return f"## Use\n\n```python\n{usage}\n```"


def _table(rows: Mapping[str, Any]) -> str:
    lines = ["| | |", "|---|---|"]
    for name, value in rows.items():
        shown = f"{value:.4f}" if isinstance(value, float) and 1e-3 <= abs(value) < 1e6 else str(value)
        lines.append(f"| {_plain(name)} | {_plain(shown)} |")
    return "\n".join(lines)


_MARKS = re.compile(r"[<|`*]|(?<=\])[(\[]|&(?=#|\w+;)")
"""What would become HTML, a column, code, stress, a link or an image in a text that says none of these."""


def _plain(text: str) -> str:
    """Return a name or label as Markdown that shows it as it is, on one line: it may come from anybody."""
    words = " ".join("".join(c if c.isprintable() or c.isspace() else "\ufffd" for c in text).split())
    return _MARKS.sub(lambda mark: f"&#{ord(mark[0])};", words)
