"""``megabert export``: a checkpoint as a folder that ``transformers`` loads."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def run(arguments: Sequence[str]) -> int:
    """Parse, read, write."""
    parser = argparse.ArgumentParser(
        prog="megabert export",
        description="Write a run's checkpoint in Hugging Face form: config.json, model.safetensors, tokenizer files "
        "and a model card. transformers' AutoModelForMaskedLM, BertForPreTraining and AutoTokenizer load the folder.",
        epilog="example: megabert export runs/demo --to models/demo --checkpoint best",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--to", type=Path, required=True, metavar="DIR", help="folder to write, new or an earlier export"
    )
    parser.add_argument(
        "--checkpoint",
        default="last",
        help="last, best (lowest held-out loss within the last phase) or a step (default: last)",
    )
    options = parser.parse_args(arguments)

    from megabert.export.run import export_run

    export_run(options.run_dir, options.to, checkpoint=options.checkpoint)
    print(f"exported to {options.to}")
    return 0
