"""Write a vector for each line of a text, or for each token.

The file is UTF-8, the vectors go to Parquet or .npy. Row i is line i + 1; an empty line gets the vector of [CLS] [SEP].
Lines longer than the model was trained on are cut, counted and named. Memory does not grow with the file. A folder of
sentence-transformers gives the vectors of its modules; --pooling gives its encoder's.

Arguments:
  FILE              one text per line
  --output X        X.parquet or X.npy (default: FILE with .parquet, which must be new)
  --pooling         last hidden state of [CLS]; mean of all tokens, [CLS] and [SEP] included; or every token's, with the
                    tokens, in Parquet (default: as modules.json of the folder says, else mean)
  --batch-tokens N  tokens of a forward pass (default: 8192)

Example:
  megabert embed sentences.txt --model runs/demo --output sentences.npy --pooling cls
"""

import sys
from argparse import Namespace
from pathlib import Path
from typing import get_args

from megabert.commands.model_argument import open_model
from megabert.foundation.errors import ConfigError
from megabert.settings.command_line.arguments import Pooling
from megabert.settings.command_line.parser import Parser, positive


def add_arguments(parser: Parser) -> None:
    """Describe the command."""
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_model()
    parser.add_argument("--output", type=Path)
    parser.add_argument("--pooling", choices=get_args(Pooling))
    parser.add_argument("--batch-tokens", type=positive, default=8192)


def run(options: Namespace) -> None:
    """Load the model, stream the file through it, print the counts."""
    output = options.output or options.file.parent / f"{options.file.stem}.parquet"
    if options.output is None and output.exists():
        raise ConfigError(f"{output}: exists, and would be replaced. If that is meant, say so: --output {output}")
    source = open_model(options, options.file, outputs=[output])
    import torch

    from megabert.downstream.inspection.embed import check_output, embed_file

    form = source.pooled(options.pooling) if options.pooling else source.vector_form
    check_output(output, has_tokens=form.has_tokens)
    tokenizer = source.load_tokenizer()
    model = source.build_model().to("cuda" if torch.cuda.is_available() else "cpu")
    done = embed_file(model, tokenizer, options.file, output, form=form, batch_tokens=options.batch_tokens)
    if done.truncated:
        limit = form.limit(model.config.max_position_embeddings)
        why = ", as its run or its tokenizer states" if limit < model.config.max_position_embeddings else ""
        cut = f"{done.truncated:,} of {done.lines:,} lines were cut to the {limit} tokens that the model reads"
        print(f"{cut}{why}; the first is {options.file}:{done.first_truncated}", file=sys.stderr)
    print(f"{output}: {done.lines:,} lines, {done.tokens:,} tokens, vectors of {form.width(model.config.hidden_size)}")
