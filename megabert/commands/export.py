"""``megabert export``: a checkpoint as a folder that ``transformers`` loads."""

from argparse import Namespace
from pathlib import Path

from megabert.command_line.program import Parser
from megabert.command_line.terminal import loading


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.description = (
        "Write a run's checkpoint in Hugging Face form: config.json, model.safetensors, tokenizer files and a model "
        "card. transformers' AutoModelForMaskedLM, BertForPreTraining and AutoTokenizer load the folder."
    )
    parser.examples = ["megabert export runs/demo --to models/demo --checkpoint best"]
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--to", type=Path, required=True, metavar="DIR", help="folder to write, new or an earlier export"
    )
    parser.add_checkpoint()
    text = (
        "weights as they were trained, or their moving average (average.decay); default: trained, but with "
        "--checkpoint best those that were scored (validation.weights)"
    )
    parser.add_argument("--weights", choices=("trained", "average"), help=text)


def run(options: Namespace) -> int:
    """Read the checkpoint, write the folder."""
    from megabert.training.run.folder import read_config

    read_config(options.run_dir)  # says what is no run before the seconds that torch takes
    with loading("PyTorch"):
        from megabert.export.run_folder import export_run

    export_run(options.run_dir, options.to, checkpoint=options.checkpoint, weights=options.weights)
    print(f"exported to {options.to}")
    return 0
