"""``megabert evaluate``: score a fine-tuned model again, on any labelled file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from megabert.config.loading import parse_flags


def run(arguments: Sequence[str]) -> int:
    """Parse, score, print."""
    parser = argparse.ArgumentParser(
        prog="megabert evaluate",
        description="Score a fine-tuned model, ours or anybody's, on a labelled file with its task's official metrics. "
        "Settings that scoring depends on come from the model's folder; their flags in `megabert finetune` change "
        "them, such as --text-column, --null-threshold, --language or --max-eval-examples. A head whose labels have no "
        "names takes the task's, or those of the file, sorted.",
        epilog="example: megabert evaluate --model runs/mrpc/seed_42/model --data glue/MRPC/dev.tsv",
        allow_abbrev=False,
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of the fine-tuned model")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="PATH", help="labelled file, or a folder with dev.*"
    )
    parser.add_argument("--task", help="for a folder that does not say its task")
    parser.add_argument("--predictions", type=Path, metavar="STEM", help="write predictions to STEM.jsonl or the like")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto, a GPU if any")
    options, fields = parser.parse_known_args(arguments)
    changes = parse_flags(fields)

    from megabert.finetuning.rescore import rescore

    metrics = rescore(
        options.model,
        options.data,
        task_name=options.task,
        changes=changes,
        predictions=options.predictions,
        device=options.device,
    )
    for name, value in metrics.items():
        print(f"{name}  {value:.4f}")
    return 0
