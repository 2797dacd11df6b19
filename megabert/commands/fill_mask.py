"""``megabert fill-mask``: guess the [MASK]s of a text."""

import argparse
from collections.abc import Sequence

from megabert.commands.arguments import add_model, positive


def run(arguments: Sequence[str]) -> int:
    """Load the model, guess, print."""
    parser = argparse.ArgumentParser(
        prog="megabert fill-mask",
        description="Guess what stands behind each [MASK] of a text, with a run's checkpoint or a Hugging Face folder.",
        epilog='example: megabert fill-mask --model runs/demo "The whale is a [MASK] animal."',
    )
    parser.add_argument("text", nargs="+", metavar="TEXT", help="with one [MASK] or more")
    add_model(parser)
    parser.add_argument("--top", type=positive, default=5, metavar="N", help="guesses a mask (default: 5)")
    options = parser.parse_args(arguments)

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
