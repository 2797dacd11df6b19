"""The model of a command that looks into one: opened as fast as its name allows."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from megabert.foundation.files import check_regular, refuse_input
from megabert.foundation.json_files import write_json
from megabert.settings.command_line.arguments import CopyMask
from megabert.settings.command_line.parser import Parser, positive
from megabert.settings.command_line.terminal import loading

if TYPE_CHECKING:
    from megabert.downstream.export.sources import Source
    from megabert.downstream.inspection.pseudo_likelihood import SentenceScorer


def open_model(
    options: Namespace, *inputs: Path, outputs: Sequence[Path | None] = (), kept: Sequence[Path] = ()
) -> "Source":
    """Open the weights that ``--model`` and ``--checkpoint`` name.

    A wrong folder, a wrong file among ``inputs``, which the command reads, or one of ``outputs`` that would replace
    something it reads is refused before torch loads; ``kept`` are folders and the like that it reads, too.
    """
    from megabert.downstream.export.model_folder import find_model, kind_of_folder

    kind_of_folder(options.model)
    for path in inputs:
        check_regular(path)
    for output in filter(None, outputs):
        refuse_input(output, *inputs, *kept, find_model(options.model))
    with loading("PyTorch"):
        from megabert.downstream.export.sources import open_source
    return open_source(options.model, options.checkpoint or "last")


def add_copies(parser: Parser) -> None:
    """Add the flags of `open_scorer` other than the model's."""
    text = (
        "within-word also masks the later pieces of the same word, token masks each piece alone (default: within-word)"
    )
    parser.add_argument("--mask", choices=get_args(CopyMask), default="within-word", help=text)
    text = "tokens of a forward pass (default: 8192)"
    parser.add_argument("--batch-tokens", type=positive, default=8192, metavar="N", help=text)
    parser.add_device()


def save_scores(options: Namespace, settings: Mapping[str, Any], scores: Mapping[str, Any]) -> None:
    """Write the scores of a model to the file of ``--json``, if it is given, with the model and the settings."""
    if options.json:
        what = {"model": options.model, "checkpoint": options.checkpoint or "last"}
        write_json(options.json, {**what, **settings, **scores}, ensure_ascii=False)
        print(f"written: {options.json}")


def open_scorer(options: Namespace, *inputs: Path, is_random: bool = False, **paths: Any) -> "SentenceScorer":
    """Open a model that scores sentences, as `open_model` does; or its shape with random weights."""
    source = open_model(options, *inputs, **paths)
    from megabert.downstream.export.sources import find_device
    from megabert.downstream.inspection.pseudo_likelihood import SentenceScorer

    copies = {"mask": options.mask, "batch_tokens": options.batch_tokens}
    return SentenceScorer(source, device=find_device(options.device), is_random=is_random, **copies)
