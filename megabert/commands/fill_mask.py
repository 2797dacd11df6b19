"""``megabert fill-mask``: guess the [MASK]s of a text."""

from argparse import Namespace

from megabert.command_line.program import Parser, positive
from megabert.command_line.terminal import loading


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.description = "Guess each [MASK] of a text with a run's checkpoint or a Hugging Face folder."
    parser.examples = ['megabert fill-mask --model runs/demo "The whale is a [MASK] animal."']
    parser.add_argument("text", nargs="+", metavar="TEXT", help="a text with one [MASK] or more")
    parser.add_model()
    parser.add_argument("--top", type=positive, default=5, metavar="N", help="guesses a mask (default: 5)")


def run(options: Namespace) -> int:
    """Load the model, guess, print."""
    from megabert.export.model_folder import kind_of_folder

    kind_of_folder(options.model)  # says what is no model before the seconds that torch takes
    with loading("PyTorch"):
        from megabert.export.sources import open_source
        from megabert.inspection.fill_mask import fill_mask, render_guesses

    source = open_source(options.model, options.checkpoint)
    tokenizer = source.load_tokenizer()
    model = source.build_model(fills_masks=True)
    guesses = [
        render_guesses(text, {"model": fill_mask(model, tokenizer, text, top_k=options.top)}) for text in options.text
    ]
    print("\n\n".join(guesses))
    return 0
