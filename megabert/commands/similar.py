"""``megabert similar``: nearest word embeddings."""

from argparse import Namespace

from megabert.command_line.program import Parser, positive
from megabert.command_line.terminal import loading


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.description = (
        "Print the pieces whose word embeddings are nearest to a word's by cosine. Words joined by + and - (with "
        "spaces around) are added up, each scaled to length 1; a word of several pieces is their mean. Words without "
        "an operator between them are looked up one by one."
    )
    parser.examples = ["megabert similar --model runs/demo ship king - man + woman"]
    parser.add_argument("word", nargs="+", metavar="WORD", help="a word, + or -")
    parser.add_model()
    parser.add_argument("--top", type=positive, default=10, metavar="N", help="neighbours of each (default: 10)")


def run(options: Namespace) -> int:
    """Load the embeddings, search, print."""
    from megabert.export.model_folder import kind_of_folder

    kind_of_folder(options.model)  # says what is no model before the seconds that torch takes
    with loading("PyTorch"):
        from megabert.export.sources import open_source
        from megabert.inspection.similar import nearest, parse_queries, render_neighbours

    queries = parse_queries(options.word)
    source = open_source(options.model, options.checkpoint)
    tokenizer = source.load_tokenizer()
    weight = source.build_model().bert.embeddings.word_embeddings.weight
    embeddings_VD = weight[: tokenizer.vocab_size].detach().double().numpy()
    blocks = [
        render_neighbours(query, nearest(query, embeddings_VD, tokenizer, top_k=options.top), tokenizer)
        for query in queries
    ]
    print("\n\n".join(blocks))
    return 0
