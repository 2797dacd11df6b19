"""Guess the [MASK]s of a text.

The model is a run's checkpoint or a Hugging Face folder.

Arguments:
  TEXT     a text with one [MASK] or more
  --top N  guesses per mask (default: 5)

Example:
  megabert fill-mask --model runs/demo "The whale is a [MASK] animal."
"""

from argparse import Namespace

from megabert.commands.model_argument import open_model
from megabert.settings.command_line.parser import Parser, positive


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("text", nargs="+", metavar="TEXT")
    parser.add_model()
    parser.add_argument("--top", type=positive, default=5)


def run(options: Namespace) -> None:
    """Load the model, guess, print."""
    source = open_model(options)
    from megabert.downstream.inspection.fill_mask import fill_mask, render_guesses

    tokenizer, model = source.load_tokenizer(), source.build_model(fills_masks=True)
    how = {"top_k": options.top, "longest": source.longest}
    guesses = [(text, fill_mask(model, tokenizer, text, **how)) for text in options.text]
    print("\n\n".join(render_guesses(text, {"model": guess}) for text, guess in guesses))
