"""Write a checkpoint as a folder that transformers loads.

The folder has config.json, model.safetensors, tokenizer files and a model card. AutoModelForMaskedLM,
BertForPreTraining and AutoTokenizer of transformers load the folder. A Hugging Face folder, such as a fine-tuned
model's, can be given in place of a run to add further forms to it.

Examples:
  megabert export runs/demo --to models/demo --checkpoint best
  megabert export runs/demo --to models/demo --language en --license apache-2.0
  megabert export runs/demo --to models/demo-vectors --sentence-transformers mean --onnx --check
"""

from argparse import Namespace
from pathlib import Path

from megabert.command_line.program import Parser, refuse_flags
from megabert.command_line.terminal import loading
from megabert.text_tables import render_table

FORMS = {"--sentence-transformers", "--onnx", "--check"}
"""Flags that add a form to a model."""
OF_RUNS = ("--checkpoint", "--weights", "--language", "--license", "--base-model")
"""Flags that only a run has a use for; a Hugging Face folder keeps its card."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    text = "run folder, or a Hugging Face folder that gets further forms"
    parser.add_argument("run_dir", type=Path, metavar="RUN", help=text)
    text = "folder to write, new or an earlier export"
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help=text)
    parser.add_checkpoint()
    text = (
        "weights as they were trained, or their moving average (average.decay); default: trained, but with "
        "--checkpoint best those that were scored (validation.weights)"
    )
    parser.add_argument("--weights", choices=("trained", "average"), help=text)
    text = (
        "add the files by which sentence-transformers loads the folder: one vector per text, the mean over its tokens "
        "or that of [CLS] as `megabert embed` computes them, or one per token, of length 1 (MultiVectorEncoder)"
    )
    parser.add_argument("--sentence-transformers", choices=("mean", "cls", "colbert"), help=text)
    text = "add onnx/model.onnx, with the heads or the pooled vectors, and compare it with transformers in onnxruntime"
    parser.add_argument("--onnx", action="store_true", help=text)
    text = "print the largest difference of each form: megabert, ONNX and float16 against transformers in float32"
    parser.add_argument("--check", action="store_true", help=text)
    text = "of the card: ISO 639 codes of the text's languages"
    parser.add_argument("--language", nargs="+", default=[], metavar="CODE", help=text)
    parser.add_argument("--license", metavar="ID", help="of the card: such as apache-2.0 (default: none is stated)")
    text = "of the card: the model that the weights started from (default: init_from)"
    parser.add_argument("--base-model", metavar="NAME", help=text)


def run(options: Namespace) -> int:
    """Read the checkpoint, write the folder."""
    from megabert.export.model_folder import kind_of_folder
    from megabert.training.run.folder import read_config

    # Another folder is refused before the seconds that torch takes.
    is_run = not FORMS & options.given or kind_of_folder(str(options.run_dir)) == "run"
    if is_run:
        read_config(options.run_dir)
    else:
        refuse_flags(OF_RUNS, options.given, "on a Hugging Face folder")
    with loading("PyTorch"):
        from megabert.export.forms import Forms
        from megabert.export.model_card import check_facts
        from megabert.export.onnx_graph import library
        from megabert.export.run_folder import export_again, export_run

    forms = Forms(vectors=options.sentence_transformers, has_onnx=options.onnx)
    if options.check:
        library("transformers", "--check")
    if not is_run:
        export_again(options.run_dir, options.to, forms)
        print(f"exported to {options.to}")
        return _report_check(options)
    check_facts(options.language, options.license)
    facts = {"languages": tuple(options.language), "license": options.license}
    facts |= {"base_model": options.base_model} if options.base_model else {}
    export_run(
        options.run_dir, options.to, checkpoint=options.checkpoint, weights=options.weights, facts=facts, forms=forms
    )
    missing = [f"--{name}" for name in ("language", "license") if not getattr(options, name)]
    print(f"exported to {options.to}" + (f"; not stated in its card: {', '.join(missing)}" if missing else ""))
    return _report_check(options)


def _report_check(options: Namespace) -> int:
    """Print the differences of the forms, if they are asked for."""
    if options.check:
        from megabert.export.check_forms import check_forms

        rows = check_forms(options.to, options.sentence_transformers)
        cells = [(name, f"{difference:.1e}", results) for name, results, difference in rows]
        print(render_table(cells, headers=("form", "largest difference", "of"), align="lrl"))
    return 0
