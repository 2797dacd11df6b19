"""Write a checkpoint as a folder that transformers loads.

The folder has config.json, model.safetensors, tokenizer files and a model card. AutoModelForMaskedLM,
BertForPreTraining and AutoTokenizer of transformers load the folder. A Hugging Face folder, such as a fine-tuned
model's, can be given in place of a run to add further forms to it; the flags of forms that it has are given again.

--push also uploads the folder to the Hugging Face Hub (HF_ENDPOINT names another server). Each checkpoint gets a
revision of its own, step-N; `last` and `best` also become the revision main. The same command continues an interrupted
push.

Arguments:
  RUN                      run folder, or a Hugging Face folder that gets further forms
  --to DIR                 folder to write, new or an earlier export
  --weights                weights as they were trained, or their moving average (average.decay); default: trained, but
                           with --checkpoint best the scored ones (validation.weights)
  --sentence-transformers  add the files by which sentence-transformers loads the folder: one vector per text, the mean
                           over its tokens or the vector of [CLS] as `megabert embed` computes them, or one per
                           token, of length 1 (MultiVectorEncoder)
  --onnx                   add onnx/model.onnx, with the heads or the pooled vectors, and compare it with transformers
                           in onnxruntime
  --check                  print the largest difference of each form: megabert, ONNX and float16 against transformers in
                           float32
  --language CODE          of the card: ISO 639 codes of the text's languages
  --license ID             of the card: such as apache-2.0 (default: none is stated)
  --base-model NAME        of the card: name on the Hub of the model that the weights started from (default: init_from,
                           if it is one)
  --scores PATH            of the card: output folders of finetune, and files of --json of pairs, pll, evaluate mlm
  --push OWNER/NAME        upload the folder to this repository of the Hub
  --private                make the repository private, if --push makes it

Examples:
  megabert export runs/demo --to models/demo --checkpoint best
  megabert export runs/demo --to models/demo --language en --license apache-2.0
  megabert export runs/demo --to models/demo-vectors --sentence-transformers mean --onnx --check
  megabert export runs/demo --to models/demo --scores runs/mrpc pairs.json --push OWNER/demo
"""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from megabert.foundation.text_tables import render_table
from megabert.settings.command_line.parser import Parser, refuse_flags
from megabert.settings.command_line.terminal import loading

if TYPE_CHECKING:
    from megabert.downstream.publish.forms import Forms

FORMS = {"--sentence-transformers", "--onnx", "--check"}
"""Flags that add a form to a model."""
RUN_ONLY_FLAGS = ("--checkpoint", "--weights", "--language", "--license", "--base-model", "--scores")
"""Flags that only a run has a use for; a Hugging Face folder keeps its card."""


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("run_dir", type=Path, metavar="RUN")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_checkpoint()
    parser.add_argument("--weights", choices=("trained", "average"))
    parser.add_argument("--sentence-transformers", choices=("mean", "cls", "colbert"))
    parser.add_argument("--onnx", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--language", action="extend", nargs="+", default=[])
    parser.add_argument("--license")
    parser.add_argument("--base-model")
    parser.add_argument("--scores", type=Path, action="extend", nargs="+", default=[])
    parser.add_argument("--push")
    parser.add_argument("--private", action="store_true")
    parser.add_rule("--private", needs=["--push"])


def run(options: Namespace) -> None:
    """Read the checkpoint, write the folder."""
    from megabert.downstream.export.model_folder import find_model, kind_of_folder
    from megabert.training.run.folder import read_config

    options.run_dir = find_model(str(options.run_dir))
    # Another folder is refused before the seconds that torch takes.
    is_run = not {*FORMS, "--push"} & options.given or kind_of_folder(str(options.run_dir)) == "run"
    if is_run:
        read_config(options.run_dir)
    else:
        refuse_flags(RUN_ONLY_FLAGS, options.given, "on a Hugging Face folder")
    if options.push is not None:  # logs in before the work of the export
        from megabert.downstream.publish.hub import PushTarget, open_hub, push_folder

        hub = open_hub(options.push)
    with loading("PyTorch"):
        from megabert.downstream.publish.forms import Forms
        from megabert.downstream.publish.onnx_graph import library
        from megabert.downstream.publish.run_folder import export_again

    forms = Forms(vectors=options.sentence_transformers, has_onnx=options.onnx)
    if options.check:
        library("transformers", "--check")
    if is_run:
        revision, message = _export_run(options, forms)
    else:
        export_again(options.run_dir, options.to, forms)
        print(f"exported to {options.to}")
        revision, message = None, f"Export of {options.run_dir.resolve().name}"
    if options.check:
        from megabert.downstream.publish.onnx_graph import check_forms

        rows = check_forms(options.to, options.sentence_transformers)
        cells = [(name, f"{difference:.1e}", results) for name, results, difference in rows]
        print(render_table(cells, headers=("form", "largest difference", "of"), align="lrl"))
    if options.push is not None:
        has_main = revision is None or options.checkpoint in ("last", "best")
        target = PushTarget(repo=options.push, revision=revision, has_main=has_main, is_private=options.private)
        print(f"pushed as {target.shown}: {push_folder(options.to, hub, target, message=message)}")


def _export_run(options: Namespace, forms: "Forms") -> tuple[str, str]:
    """Export a checkpoint; return the name of its revision, and a title for its commit."""
    from megabert.downstream.publish.card_scores import read_scores, refuse_repeated
    from megabert.downstream.publish.run_folder import export_run
    from megabert.training.run.folder import read_config

    config = read_config(options.run_dir)
    usual = config.weights_of(options.checkpoint)
    run = options.run_dir if options.weights in (None, usual) else None
    known = {"export": options.to, "run": run, "checkpoint": options.checkpoint}
    scores = [score for path in options.scores for score in read_scores(path, **known)]
    refuse_repeated(scores)
    facts = {"languages": tuple(options.language), "license": options.license, "scores": tuple(scores)}
    facts |= {"base_model": options.base_model} if options.base_model else {}
    step = export_run(
        options.run_dir, options.to, checkpoint=options.checkpoint, weights=options.weights, facts=facts, forms=forms
    )
    missing = [f"--{name}" for name in ("language", "license") if not getattr(options, name)]
    print(f"exported to {options.to}" + (f"; not stated in its card: {', '.join(missing)}" if missing else ""))
    is_average = (options.weights or usual) == "average"
    return f"step-{step}" + "-average" * is_average, f"Step {step:,} of {config.name}"
