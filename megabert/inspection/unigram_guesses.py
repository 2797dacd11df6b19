"""Guesses for [MASK] by the unigram predictor, the untrained and the trained model, side by side."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megabert.export.sources import open_source
from megabert.inspection.fill_mask import fill_mask, render_guesses, unigram_guesses
from megabert.tokenization import load_tokenizer


def compare_guesses(run_dir: Path, texts: Sequence[str], checkpoint: str, *, counts: NDArray[np.int64]) -> str:
    """Return guesses of the unigram predictor, the untrained (step 0) and the trained model side by side.

    Args:
        run_dir: The run's folder.
        texts: Texts with at least one ``[MASK]`` each.
        checkpoint: The checkpoint that holds the trained model: last, best or a step.
        counts: How often each piece was a training target.
    """
    trained = open_source(str(run_dir), checkpoint)
    tokenizer = load_tokenizer(trained.tokenizer_dir)
    models = {"untrained": trained.build_untrained_model(), "trained": trained.build_model()}
    blocks = []
    for text in texts:
        guesses = {name: fill_mask(model, tokenizer, text) for name, model in models.items()}
        unigram = [unigram_guesses(counts, tokenizer) for _ in guesses["trained"]]
        blocks.append(render_guesses(text, {"unigram": unigram, **guesses}))
    return "\n\n".join(blocks)
