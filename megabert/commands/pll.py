"""Score sentences by their pseudo-log-likelihood.

Each piece of a sentence is masked in a copy of its own and guessed; the log-probabilities (nats) add up to the
sentence's score. The file has a sentence per line; a .jsonl file has one per object. The whole text gets a pseudo-
perplexity. In a sentence that is longer than the model was trained on, each piece is seen with the nearest pieces only;
how many sentences are, and which is the first, is printed. An ELECTRA is scored by its generator.

Arguments:
  FILE                a sentence per line, or JSON Lines
  --output FILE       write a JSON object per sentence: line, text, score, pieces, windowed
  --json FILE         write the sums and means
  --text-column NAME  field of a JSON object that holds the sentence (default: text)

Example:
  megabert pll sentences.txt --model runs/demo --output scores.jsonl
"""

import sys
from argparse import Namespace
from pathlib import Path

from megabert.commands.model_argument import add_copies, open_scorer, save_scores
from megabert.foundation.json_files import JSON_SUFFIXES
from megabert.settings.command_line.parser import Parser, output_path, refuse_flags


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_model()
    parser.add_argument("--output", type=output_path)
    parser.add_argument("--json", type=output_path)
    parser.add_argument("--text-column", default="text")
    add_copies(parser)


def run(options: Namespace) -> None:
    """Load the model, stream the file through it, print the means."""
    if options.file.suffix not in JSON_SUFFIXES:
        refuse_flags(["--text-column"], options.given, "on plain text")
    scorer = open_scorer(options, options.file, outputs=(options.output, options.json))
    from megabert.downstream.inspection.pseudo_likelihood import render_text_score, score_file

    total = score_file(scorer, options.file, column=options.text_column, output=options.output)
    if total.windowed:
        told = f"{total.windowed:,} of {total.sentences:,} sentences are longer than the {scorer.longest} tokens "
        where = f"the first is {options.file}:{total.first_windowed}"
        print(
            f"{told}that the model reads; their pieces were seen with the nearest ones only; {where}", file=sys.stderr
        )
    print(render_text_score(total))
    save_scores(options, {"data": str(options.file), "mask": options.mask}, total.to_dict())
    if options.output:
        print(f"written: {options.output}")
