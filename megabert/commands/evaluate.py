"""``megabert evaluate``: score a fine-tuned model again, on any labelled file."""

import glob
from argparse import Namespace
from pathlib import Path

from megabert.command_line.program import Parser
from megabert.command_line.terminal import loading
from megabert.config.finetune import FinetuneConfig


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.description = (
        "Score a fine-tuned model, ours or anybody's, on a labelled file with its task's official metrics. Settings "
        "that scoring depends on come from the model's folder; the flags of `megabert finetune` change them. A head "
        "whose labels have no names takes the task's, or those of the file, sorted."
    )
    parser.examples = ["megabert evaluate --model runs/mrpc/seed_42/model --data glue/MRPC/dev.tsv"]
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of the fine-tuned model")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="PATH", help="labelled file, or a folder with dev.*"
    )
    parser.add_argument("--task", help="task of a folder that does not say it")
    parser.add_argument("--predictions", type=Path, metavar="STEM", help="write predictions to STEM.jsonl or the like")
    parser.add_device()
    columns = ("text-column", "pair-column", "label-column")
    settings = ("language", "max-eval-examples", "null-threshold")
    parser.add_fields(FinetuneConfig, first=("model", "data", "task", "predictions", *columns, *settings, "device"))


def run(options: Namespace) -> int:
    """Score and print."""
    with loading("PyTorch"):
        from megabert.files import refuse_input
        from megabert.finetuning.evaluate import rescore
        from megabert.observability.logs import log_to_stderr

    if options.predictions is not None:
        for path in options.predictions.parent.glob(f"{glob.escape(options.predictions.name)}.*"):
            refuse_input(path, Path(options.data), Path(options.model))
    log_to_stderr(0)
    table = rescore(
        options.model,
        options.data,
        task_name=options.task,
        changes=options.fields,
        predictions=options.predictions,
        device=options.device,
    )
    print(table)
    return 0
