"""Count how often the good sentence of a minimal pair wins.

A pair is two sentences that differ in one place. The model is right if the pseudo-log-likelihood of the good one is
higher; chance is 50%. SET is english or korean (12 phenomena each, of our own), or a file in BLiMP's form: JSON Lines
with sentence_good, sentence_bad and UID. A tie counts as half a right answer.

Arguments:
  SET               english, korean, or a file in BLiMP's form
  --random-weights  score the model's shape with random weights, as a baseline
  --by              field that names a pair's group (default: UID, the phenomenon)
  --json FILE       also write the accuracies, as fractions

Examples:
  megabert pairs english --model runs/demo
  megabert pairs data/blimp/*.jsonl --model runs/demo --by linguistics_term
"""

import sys
from argparse import Namespace
from pathlib import Path

from megabert.commands.model_argument import add_copies, open_scorer, save_scores
from megabert.settings.command_line.parser import Parser


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("sets", nargs="+", metavar="SET")
    parser.add_model()
    parser.add_argument("--random-weights", action="store_true")
    parser.add_argument("--by", choices=("UID", "linguistics_term", "field"), default="UID")
    parser.add_argument("--json", type=Path)
    add_copies(parser)


def run(options: Namespace) -> None:
    """Load the model, score the pairs, print the tables."""
    from megabert.training.probes.minimal_pairs import read_pairs

    sets = {name: read_pairs(Path(name)) for name in options.sets}
    kept = [Path(name) for name in options.sets]
    scorer = open_scorer(options, is_random=options.random_weights, outputs=[options.json], kept=kept)
    from megabert.downstream.inspection.pseudo_likelihood import render_pairs, score_pairs

    results = score_pairs(scorer, sets)
    print("\n\n".join(render_pairs(result, options.by) for result in results))
    for result in results:
        if result.windowed:
            longer = f"{result.windowed:,} sentences are longer than the {scorer.longest} tokens that the model reads"
            print(f"{result.name}: {longer}; their pieces were seen with the nearest ones only", file=sys.stderr)
    settings = {"random_weights": options.random_weights, "mask": options.mask}
    save_scores(options, settings, {"sets": [result.to_dict() for result in results]})
