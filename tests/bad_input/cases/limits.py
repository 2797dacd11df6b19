"""Limits of file size, as ``ulimit -f`` and quotas set them: every write names what is lacking."""

from bad_input.given import copy
from bad_input.harness import Case
from bad_input.material import COMMANDS, run_flags

EVALUATE = "megabert evaluate --model tuned/seed_42/model --data labels.tsv --predictions new --device cpu"
FINETUNE = COMMANDS["tuned"].replace("--output-dir tuned", "--output-dir new")
PRETRAIN = f"megabert pretrain {run_flags()} --run-dir new"
LIMIT = 4 << 10

# name, command, needs, exit code, what may be there afterwards
LIMITED = (
    ("embed, .npy", "megabert embed lines.txt --model hf --output v.npy", ("hf", "lines.txt"), 3, ()),
    ("embed, .parquet", "megabert embed lines.txt --model hf --output v.parquet", ("hf", "lines.txt"), 3, ()),
    ("export", "megabert export run --to new", ("run",), 3, ()),
    ("attention", "megabert attention 'the ship' --model hf --output page.html", ("hf",), 3, ()),
    ("report", "megabert report run", ("run", "build"), 3, ()),
    ("vocab", "megabert-data vocab --input text.jsonl --output new --vocab-size 400", ("text.jsonl",), 3, ()),
    ("build", COMMANDS["build"], ("text.jsonl",), 3, ("build*",)),
    ("pretrain", PRETRAIN, ("build",), 3, ("new*",)),
    ("finetune", FINETUNE, ("hf", "labels.tsv"), 3, ("new*",)),
)

CASES = [
    Case(
        name=f"{name}: a limit of file size of {limit:,} bytes",
        given=(copy(*needs),),
        command=command,
        code=code,
        says=("limit of file size", "ulimit -f"),
        leaves=leaves,
        file_bytes=limit,
        timeout_s=240,
        quick=name == "embed, .npy" and limit == LIMIT,
    )
    for name, command, needs, code, leaves in LIMITED
    for limit in (LIMIT, 5 << 9)
] + [
    Case(
        name="pretrain: a limit of file size below a checkpoint",
        given=(copy("build"),),
        command=PRETRAIN,
        code=4,
        says=("limit of file size", "ulimit -f"),
        leaves=("new*",),
        file_bytes=80_000,
        quick=True,
    )
]
