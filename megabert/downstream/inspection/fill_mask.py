"""Guesses of both heads of pre-training: for [MASK] in a text (next to the unigram predictor's), and for a pair."""

# M masked positions, V vocabulary, B texts

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import indent

import numpy as np
import torch
from numpy.typing import NDArray

from megabert.downstream.export.sources import open_source
from megabert.downstream.inspection.encode_text import RankedPiece, best_pieces, check_outputs, pack_text
from megabert.foundation.errors import ConfigError
from megabert.foundation.text_tables import render_table
from megabert.models.bert import BertForPreTraining, PretrainingModel
from megabert.settings.command_line.arguments import checks_arguments
from megabert.tokens.tokenization import Tokenizer


@checks_arguments
@torch.no_grad()
def fill_mask(
    model: PretrainingModel, tokenizer: Tokenizer, text: str, *, top_k: int = 5, longest: int | None = None
) -> list[list[RankedPiece]]:
    """Guess each ``[MASK]`` of a text, all at once.

    Args:
        model: The model, on any device and in any precision, in evaluation mode.
        tokenizer: The model's tokenizer.
        text: A text with at least one mask, written as in the vocabulary.
        top_k: Number of guesses for each mask.
        longest: Most tokens of a text; None reads the model's positions.

    Returns:
        For each mask, from left to right, its guesses, best first.

    Raises:
        ConfigError: The text has no mask, or is longer.
    """
    encoded, batch = pack_text(model, tokenizer, text, longest=longest)
    if tokenizer.special_ids.mask not in encoded.ids:
        raise ConfigError(f"the text {text!r} has no {tokenizer.names.mask} to fill. Put one where a word is missing.")
    logits_MV = check_outputs(model(batch, with_logits=True).mlm_logits_MV)
    # A model may have more rows than the vocabulary has pieces: these take a share, and are no guesses.
    probabilities_MV = torch.softmax(logits_MV.float(), -1)[:, : tokenizer.vocab_size].cpu().numpy()
    return [best_pieces(probabilities_V, tokenizer, top_k) for probabilities_V in probabilities_MV]


def render_guesses(text: str, guesses: Mapping[str, Sequence[Sequence[RankedPiece]]]) -> str:
    """Return a plain-text table of guesses side by side.

    Args:
        text: The text with its masks.
        guesses: The guesses for each mask, by the name of the column (such as ``unigram``, ``untrained``, ``trained``).
    """
    blocks = [text]
    masks = max(len(column) for column in guesses.values())
    for mask in range(masks):
        columns = [
            [name, *(f"{guess.piece} {100 * guess.score:.1f}%" for guess in column[mask])]
            for name, column in guesses.items()
        ]
        if masks > 1:
            blocks.append(f"  mask {mask + 1}")
        blocks.append(indent(render_table(zip(*columns, strict=True)), "  "))
    return "\n".join(blocks)


def compare_guesses(
    run_dir: Path, texts: Sequence[str], checkpoint: str, *, counts: NDArray[np.floating], words: Sequence[str] = ()
) -> str:
    """Return guesses of the unigram predictor, the untrained (step 0) and the trained model side by side.

    Args:
        run_dir: The run's folder.
        texts: Texts with at least one ``[MASK]`` each.
        checkpoint: The checkpoint that holds the trained model: last, best or a step.
        counts: How often each piece was a training target.
        words: The word that each text had in place of its mask, if known.
    """
    trained = open_source(str(run_dir), checkpoint)
    tokenizer = trained.load_tokenizer()
    models = {"untrained": trained.build_untrained_model(), "trained": trained.build_model()}
    blocks, frequent = [], best_pieces(counts / counts.sum(), tokenizer, 5)  # the same for every mask of every text
    for text, word in zip_longest(texts, words):
        guesses = {name: fill_mask(model, tokenizer, text, longest=trained.longest) for name, model in models.items()}
        heading = text if word is None else f"{text}  (the text: {word})"
        blocks.append(render_guesses(heading, {"unigram": [frequent] * len(guesses["trained"]), **guesses}))
    return "\n\n".join(blocks)


@checks_arguments
@torch.no_grad()
def next_sentence(model: PretrainingModel, tokenizer: Tokenizer, first: str, second: str, *, longest: int) -> float:
    """Return the probability that the second text follows the first one (Devlin et al. 2019, section 3.1).

    A model that was trained on swapped pairs (Lan et al. 2020) gives the probability that the two are in order.

    Args:
        model: The model, on any device, in evaluation mode.
        tokenizer: The model's tokenizer.
        first: First text.
        second: Second text.
        longest: Most tokens of both together.

    Raises:
        ConfigError: The model has no head for pairs, or the two texts are longer.
    """
    if not isinstance(model, BertForPreTraining) or model.cls.seq_relationship is None:
        raise ConfigError(
            f"this model of the family {model.config.family} was not trained on pairs of sentences, so it has no head "
            "for them. Take a BERT or an ALBERT, compare pseudo-log-likelihoods, or fine-tune on pairs of your own."
        )
    _, batch = pack_text(model, tokenizer, first, second, longest=longest)
    output = model(batch, with_logits=True)
    # Of the two classes, 0 is a true next sentence and 1 a random one.
    return float(torch.softmax(check_outputs(output.nsp_logits_B2.float()), -1)[0, 0])
