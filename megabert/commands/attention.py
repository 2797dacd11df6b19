"""Write a page that shows the attention on one or two texts.

The page has lines between tokens by layer and head, all heads in small, and how queries and keys make the numbers. It
is one file and fetches nothing. A [MASK] in the text is the mask token.

Arguments:
  TEXT                the text
  TEXT_B              a second text, as segment B
  --output PAGE.html  file to write
  --layers N          layers to show, from 0 (default: all)

Example:
  megabert attention --model runs/demo "The ship sailed." "It came back." --output page.html
"""

from argparse import Namespace
from pathlib import Path

from megabert.commands.model_argument import open_model
from megabert.settings.command_line.parser import Parser


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument("second", nargs="?", metavar="TEXT_B")
    parser.add_model()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--layers", type=int, action="extend", nargs="+")


def run(options: Namespace) -> None:
    """Load the model, record its attention, write the page."""
    source = open_model(options, outputs=[options.output])
    from megabert.downstream.inspection.attention import record_attention
    from megabert.downstream.inspection.attention_page import render_attention
    from megabert.foundation.files import atomic_write

    tokenizer = source.load_tokenizer()  # before the model, whose size it has to fit
    texts = (options.text, options.second)
    record = record_attention(source.build_model(), tokenizer, *texts, longest=source.longest)
    page = render_attention(record, model=options.model, layers=options.layers)
    atomic_write(options.output, page)
    print(f"{options.output}: {len(record.pieces)} tokens, {len(page) / 2**20:.1f} MiB; open it in a browser")
