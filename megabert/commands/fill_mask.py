"""``megabert fill-mask``: guess the [MASK]s of a text."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from megabert.models.bert import BertForPreTraining


def run(arguments: Sequence[str]) -> int:
    """Load the model, guess, print."""
    parser = argparse.ArgumentParser(
        prog="megabert fill-mask",
        description="Guess what stands behind each [MASK] of a text, with a run's checkpoint or a Hugging Face folder.",
        epilog='example: megabert fill-mask runs/demo "The whale is a [MASK] animal."',
    )
    parser.add_argument("model", metavar="MODEL", help="run folder or Hugging Face folder")
    parser.add_argument("text", nargs="+", help="with one [MASK] or more")
    parser.add_argument("--checkpoint", default="last", help="last, best or a step, of a run folder (default: last)")
    parser.add_argument("--top", type=int, default=5, metavar="N", help="guesses a mask (default: 5)")
    options = parser.parse_args(arguments)

    from megabert.commands.sources import open_source
    from megabert.inspection.fill_mask import fill_mask, render_guesses
    from megabert.tokenization import load_tokenizer

    source = open_source(options.model, options.checkpoint)
    tokenizer = load_tokenizer(source.tokenizer_dir)
    model = source.build_model()
    guesses = [
        render_guesses(text, {"model": fill_mask(model, tokenizer, text, top_k=options.top)}) for text in options.text
    ]
    print("\n\n".join(guesses))
    return 0


def compare_guesses(run_dir: Path, texts: Sequence[str], checkpoint: str, *, counts: "NDArray[np.int64]") -> str:
    """Return guesses of the unigram, the untrained (step 0) and the trained model side by side.

    Args:
        run_dir: Run folder.
        texts: With one ``[MASK]`` or more each.
        checkpoint: Which one is the trained model.
        counts: How often each piece was a training target.
    """
    from megabert.commands.sources import open_source
    from megabert.inspection.fill_mask import fill_mask, render_guesses, unigram_guesses
    from megabert.tokenization import load_tokenizer

    trained = open_source(str(run_dir), checkpoint)
    tokenizer = load_tokenizer(trained.tokenizer_dir)
    models: dict[str, BertForPreTraining] = {
        "untrained": trained.build_untrained_model(),
        "trained": trained.build_model(),
    }
    blocks = []
    for text in texts:
        guesses = {name: fill_mask(model, tokenizer, text) for name, model in models.items()}
        unigram = [unigram_guesses(counts, tokenizer) for _ in guesses["trained"]]
        blocks.append(render_guesses(text, {"unigram": unigram, **guesses}))
    return "\n\n".join(blocks)
