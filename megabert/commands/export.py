"""Write a checkpoint as a folder that transformers loads.

The folder has config.json, model.safetensors, tokenizer files and a model card. AutoModelForMaskedLM,
BertForPreTraining and AutoTokenizer of transformers load the folder.

Examples:
  megabert export runs/demo --to models/demo --checkpoint best
  megabert export runs/demo --to models/demo --language en --license apache-2.0
"""

from argparse import Namespace
from pathlib import Path

from megabert.command_line.program import Parser
from megabert.command_line.terminal import loading


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run folder")
    text = "folder to write, new or an earlier export"
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help=text)
    parser.add_checkpoint()
    text = (
        "weights as they were trained, or their moving average (average.decay); default: trained, but with "
        "--checkpoint best those that were scored (validation.weights)"
    )
    parser.add_argument("--weights", choices=("trained", "average"), help=text)
    text = "of the card: ISO 639 codes of the text's languages"
    parser.add_argument("--language", nargs="+", default=[], metavar="CODE", help=text)
    parser.add_argument("--license", metavar="ID", help="of the card: such as apache-2.0 (default: none is stated)")
    text = "of the card: the model that the weights started from (default: init_from)"
    parser.add_argument("--base-model", metavar="NAME", help=text)


def run(options: Namespace) -> int:
    """Read the checkpoint, write the folder."""
    from megabert.training.run.folder import read_config

    read_config(options.run_dir)  # refuses another folder before the seconds that torch takes
    with loading("PyTorch"):
        from megabert.export.model_card import check_facts
        from megabert.export.run_folder import export_run

    check_facts(options.language, options.license)
    facts = {"languages": tuple(options.language), "license": options.license}
    facts |= {"base_model": options.base_model} if options.base_model else {}
    export_run(options.run_dir, options.to, checkpoint=options.checkpoint, weights=options.weights, facts=facts)
    missing = [f"--{name}" for name in ("language", "license") if not getattr(options, name)]
    print(f"exported to {options.to}" + (f"; not stated in its card: {', '.join(missing)}" if missing else ""))
    return 0
