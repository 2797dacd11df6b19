"""Score a fine-tuned model on labels, or any model on a text.

A fine-tuned model, ours or anybody's, is scored with its task's official metrics. Settings that scoring depends on come
from the model's folder; the flags of `megabert finetune` change them. A head whose labels have no names takes the
task's, or the sorted ones of the file.

With `mlm` it scores the guesses of a pre-trained model on any text: the masked-LM loss, accuracy and perplexity by
length, next to the score of word frequencies. --data is then a text file (plain, a blank line between documents; JSON
Lines by its suffix) or a folder of shards. Masks depend on --seed and the text alone. Fields that count:
max_seq_length, text_column, seed, micro_batch_tokens.

Arguments:
  [mlm]               score guesses at masks, not a task
  --model DIR|RUN     folder of the model; with mlm also a run folder
  --data PATH         labelled file, or a folder with dev.*
  --task              task of a folder that does not say it
  --predictions STEM  write predictions to STEM.jsonl or the like
  --checkpoint WHICH  with mlm: last, best or a step of a run (default: last)
  --masked-lm-prob P  with mlm: share of a text's tokens that is predicted (default: 0.15)
  --max-instances N   with mlm: score the first N sequences
  --split             with mlm: split of a folder of shards (default: validation)
  --json FILE         with mlm: also write the scores, as fractions

Examples:
  megabert evaluate --model runs/mrpc/seed_42/model --data glue/MRPC/dev.tsv
  megabert evaluate mlm --model runs/demo --data other.txt --json scores.json
"""

import glob
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megabert.commands.model_argument import open_model, save_scores
from megabert.settings.command_line.parser import Parser, output_path, positive, refuse_flags
from megabert.settings.command_line.terminal import loading
from megabert.settings.config.finetune import FinetuneConfig
from megabert.settings.config.loading import merge_layers
from megabert.settings.config.names import leaf_paths

if TYPE_CHECKING:
    from megabert.downstream.inspection.masked_lm import ScoringOptions

FLAGS_OF_TASKS = ("--task", "--predictions")
FLAGS_OF_MLM = ("--checkpoint", "--masked-lm-prob", "--max-instances", "--split", "--json")
FIELDS_OF_SHARDS = ("micro_batch_tokens",)
FIELDS_OF_TEXT = ("max_seq_length", "text_column", "seed", *FIELDS_OF_SHARDS)
"""Fields that `mlm` reads; shards have their own length, text and masks."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("what", nargs="?", choices=["mlm"], metavar="[mlm]")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--task")
    parser.add_argument("--predictions", type=output_path)
    parser.add_argument("--checkpoint")
    parser.add_argument("--masked-lm-prob", type=float)
    parser.add_argument("--max-instances", type=positive)
    parser.add_argument("--split", choices=("validation", "train"))
    parser.add_argument("--json", type=output_path)
    parser.add_device()
    own = ("model", "data", "task", "predictions", *(flag[2:] for flag in FLAGS_OF_MLM))
    parser.add_fields(FinetuneConfig, first=(*own, "text-column", "max-seq-length", "device"))


def run(options: Namespace) -> None:
    """Score and print."""
    from megabert.observability.logs import log_to_stderr

    log_to_stderr(0)
    if options.what == "mlm":
        _score_text(options)
        return
    refuse_flags(FLAGS_OF_MLM, options.given, "without mlm")
    with loading("PyTorch"):
        from megabert.downstream.finetuning.saved_model import rescore
        from megabert.foundation.files import refuse_input

    if options.predictions is not None:
        for path in options.predictions.parent.glob(f"{glob.escape(options.predictions.name)}.*"):
            refuse_input(path, Path(options.data), Path(options.model))
    scores = rescore(
        Path(options.model),
        options.data,
        task_name=options.task,
        changes=options.fields,
        predictions=options.predictions,
        device=options.device,
    )
    print(scores.render())


def _score_text(options: Namespace) -> None:
    refuse_flags(FLAGS_OF_TASKS, options.given, "with mlm")
    is_folder = options.data.is_dir()
    read = FIELDS_OF_SHARDS if is_folder else FIELDS_OF_TEXT
    unread = {f"--{name.replace('_', '-')}" for name in leaf_paths(options.fields) if name not in read}
    unread.add("--masked-lm-prob" if is_folder else "--split")
    refuse_flags(unread, options.given, "on the score of shards" if is_folder else "on the score of a text file")
    source = open_model(options, outputs=[options.json], kept=[options.data])
    from megabert.downstream.inspection.masked_lm import render_score, score_masked_lm, scoring_options

    fields = merge_layers(FinetuneConfig, {"model": options.model, "data": str(options.data)}, options.fields)
    given = {name: getattr(options, name) for name in ("masked_lm_prob", "max_instances", "split")}
    scoring = scoring_options(source, fields, **{name: value for name, value in given.items() if value is not None})
    score = score_masked_lm(source, options.data, scoring, device=options.device)
    print(f"{options.model} on {options.data}: losses in nats\n{render_score(score)}")
    save_scores(options, {"data": str(options.data), **_settings(scoring, options.data)}, score.to_dict())


def _settings(scoring: "ScoringOptions", data: Path) -> dict[str, Any]:
    """Return the settings of a score as far as they were used; shards have their own length and share of masks."""
    if not data.is_dir():
        return {name: value for name, value in scoring._asdict().items() if name != "split"}
    from megabert.tokens.shards.shard_set import ShardSet

    used = {name: getattr(scoring, name) for name in ("split", "batch_tokens", "max_instances")}
    metadata = ShardSet.open(data, scoring.split).metadata
    return {"max_seq_length": metadata.max_seq_length, "masked_lm_prob": metadata.masked_lm_prob, **used}
