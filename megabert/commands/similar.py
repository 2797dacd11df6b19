"""Find the nearest word embeddings; a - b + c.

It prints the pieces whose word embeddings are nearest to a word's by cosine. Words joined by + and - (with spaces
around) are added up, each scaled to length 1; a word of several pieces is their mean. Words without an operator between
them are looked up one by one.

Arguments:
  WORD     a word, + or -
  --top N  neighbours of each (default: 10)

Example:
  megabert similar --model runs/demo ship king - man + woman
"""

from argparse import Namespace

from megabert.commands.model_argument import open_model
from megabert.settings.command_line.parser import Parser, positive


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("word", nargs="+", metavar="WORD")
    parser.add_model()
    parser.add_argument("--top", type=positive, default=10)


def run(options: Namespace) -> None:
    """Load the embeddings, search, print."""
    source = open_model(options)
    from megabert.downstream.inspection.similar import nearest, parse_queries, render_neighbours, word_embeddings

    queries, tokenizer = parse_queries(options.word), source.load_tokenizer()
    embeddings_VD = word_embeddings(source.build_model(), tokenizer).astype(float)
    neighbours = [(query, nearest(query, embeddings_VD, tokenizer, top_k=options.top)) for query in queries]
    print("\n\n".join(render_neighbours(query, near, tokenizer) for query, near in neighbours))
