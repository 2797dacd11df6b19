"""``megabert evaluate``: score a fine-tuned model again on a labelled file, or any model's guesses on any text."""

import glob
import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from megabert.command_line.program import Parser, positive
from megabert.command_line.terminal import loading
from megabert.config.finetune import FinetuneConfig
from megabert.errors import ConfigError

if TYPE_CHECKING:
    from megabert.inspection.masked_lm import ScoringOptions

OF_TASKS = ("task", "predictions")
"""Options of labelled files alone."""
OF_TEXT = ("checkpoint", "masked_lm_prob", "max_instances", "split", "json")
"""Options of `mlm` alone."""
TEXT_FIELDS = ("max_seq_length", "text_column", "seed", "micro_batch_tokens")
"""Fields that `mlm` reads; shards have their own length, text and masks."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.description = (
        "Score a fine-tuned model, ours or anybody's, on a labelled file with its task's official metrics. Settings "
        "that scoring depends on come from the model's folder; the flags of `megabert finetune` change them. A head "
        "whose labels have no names takes the task's, or those of the file, sorted. With `mlm`: the masked-LM loss, "
        "accuracy and perplexity of a pre-trained model on any text, by length, beside what word frequencies score."
    )
    parser.notes = f"""
with mlm: --data is a text file (plain, a blank line between documents; JSON Lines by its suffix) or a folder of shards;
masks depend on --seed and the text alone. Fields that count: {", ".join(TEXT_FIELDS)}.
"""
    parser.examples = [
        "megabert evaluate --model runs/mrpc/seed_42/model --data glue/MRPC/dev.tsv",
        "megabert evaluate mlm --model runs/demo --data other.txt --json scores.json",
    ]
    parser.add_argument("what", nargs="?", choices=["mlm"], metavar="[mlm]", help="score guesses at masks, not a task")
    parser.add_argument(
        "--model", required=True, metavar="DIR|RUN", help="folder of the model; with mlm also a run folder"
    )
    parser.add_argument(
        "--data", type=Path, required=True, metavar="PATH", help="labelled file, or a folder with dev.*"
    )
    parser.add_argument("--task", help="task of a folder that does not say it")
    parser.add_argument("--predictions", type=Path, metavar="STEM", help="write predictions to STEM.jsonl or the like")
    parser.add_argument("--checkpoint", metavar="WHICH", help="with mlm: last, best or a step of a run (default: last)")
    share = "with mlm: share of a text's tokens that is predicted (default: 0.15)"
    parser.add_argument("--masked-lm-prob", type=float, metavar="P", help=share)
    parser.add_argument("--max-instances", type=positive, metavar="N", help="with mlm: score the first N sequences")
    choices = ("validation", "train")
    parser.add_argument("--split", choices=choices, help="with mlm: split of a folder of shards (default: validation)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="with mlm: also write the scores, as fractions")
    parser.add_device()
    own = ("model", "data", "task", "predictions", *(name.replace("_", "-") for name in OF_TEXT))
    parser.add_fields(FinetuneConfig, first=(*own, "text-column", "max-seq-length", "device"))


def run(options: Namespace) -> int:
    """Score and print."""
    if options.what == "mlm":
        _refuse(options, OF_TASKS, "without mlm alone")
        return _score_text(options)
    _refuse(options, OF_TEXT, "with mlm alone")
    with loading("PyTorch"):
        from megabert.files import refuse_input
        from megabert.finetuning.saved_model import rescore
        from megabert.observability.logs import log_to_stderr

    if options.predictions is not None:
        for path in options.predictions.parent.glob(f"{glob.escape(options.predictions.name)}.*"):
            refuse_input(path, Path(options.data), Path(options.model))
    log_to_stderr(0)
    table = rescore(
        Path(options.model),
        options.data,
        task_name=options.task,
        changes=options.fields,
        predictions=options.predictions,
        device=options.device,
    )
    print(table)
    return 0


def _refuse(options: Namespace, names: tuple[str, ...], whose: str) -> None:
    """Refuse flags that would change nothing."""
    given = [name.replace("_", "-") for name in names if getattr(options, name) is not None]
    if given:
        raise ConfigError(f"--{given[0]}: has a meaning {whose}. Leave it out.")


def _score_text(options: Namespace) -> int:
    is_folder = options.data.is_dir()
    fields = ("micro_batch_tokens",) if is_folder else TEXT_FIELDS
    without = [name for name in options.fields if name not in fields]
    without += ["masked_lm_prob"] if is_folder and options.masked_lm_prob is not None else []
    without += ["split"] if not is_folder and options.split is not None else []
    if without:
        flag, what = without[0].replace("_", "-"), "shards" if is_folder else "a text file"
        raise ConfigError(f"--{flag}: changes nothing in the score of {what}. Leave it out.")
    from megabert.export.model_folder import kind_of_folder

    kind_of_folder(options.model)  # says what is no model before the seconds that torch takes
    with loading("PyTorch"):
        from megabert.export.sources import find_device, open_source
        from megabert.files import atomic_write, refuse_input
        from megabert.inspection.masked_lm import render_score, score_masked_lm

    if options.json is not None:
        refuse_input(options.json, options.data, Path(options.model))
    source = open_source(options.model, options.checkpoint or "last")
    scoring = _scoring_options(options, source.model.max_position_embeddings)
    score = score_masked_lm(source, options.data, scoring, device=find_device(options.device))
    print(f"{options.model} on {options.data}: losses in nats\n{render_score(score)}")
    if options.json:
        content = {"model": options.model, "data": str(options.data), **vars(scoring), **score.to_dict()}
        atomic_write(options.json, json.dumps(content, indent=2) + "\n")
        print(f"scores: {options.json}")
    return 0


def _scoring_options(options: Namespace, positions: int) -> "ScoringOptions":
    """Return what is scored; the fields are checked as those of a fine-tuning."""
    from megabert.config.loading import merge_layers
    from megabert.inspection.masked_lm import USUAL_LENGTH, ScoringOptions

    fields = merge_layers(FinetuneConfig, {"model": options.model, "data": str(options.data)}, options.fields)
    length = min(USUAL_LENGTH, positions) if fields.max_seq_length == "auto" else fields.max_seq_length
    given = {name: getattr(options, name) for name in ("masked_lm_prob", "max_instances", "split")}
    return ScoringOptions(
        max_seq_length=length,
        seed=fields.seed,
        batch_tokens=fields.micro_batch_tokens,
        text_column=fields.text_column or "text",
        **{name: value for name, value in given.items() if value is not None},
    )
