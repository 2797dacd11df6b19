"""Surroundings: variables that are no numbers, outputs that are full or closed, workers that die."""

from collections.abc import Iterable

from bad_input.given import copy, write
from bad_input.harness import Case
from bad_input.material import run_flags

PRETRAIN = f"megabert pretrain {run_flags()} --run-dir new"
RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
TWO = {**RANK, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29577"}
TASK = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
TWO_TASKS = {**TASK, "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node1"}
# A word, nothing, a space, a minus, a fraction, a superscript, another script's digit, too many digits, a line break.
NO_NUMBERS = ["first", "", " ", "-1", "0.0", "\u00b2", "\u0661", "1" * 5000, "1\n2"]


def without_number(sound: dict[str, str], names: str, values: Iterable[str]) -> list[tuple[dict[str, str], str]]:
    """Return variables, each in turn set to each value, and its name."""
    return [({**sound, name: value}, name) for name in names.split() for value in values]


# variables, and the variable that the message names
VARIABLES = [
    *without_number(RANK, "RANK WORLD_SIZE LOCAL_RANK", NO_NUMBERS),
    *without_number(TWO, "MASTER_PORT", [value for value in NO_NUMBERS if value]),  # empty: the default
    *without_number(TASK, "SLURM_PROCID SLURM_STEP_NUM_TASKS SLURM_LOCALID", NO_NUMBERS),
    *without_number(TWO_TASKS, "SLURM_JOB_ID SLURM_STEP_ID", ["x", "-1", "\u00b2", "9" * 5000]),
    *without_number(RANK, "RANK LOCAL_RANK", ["1", "5", "99999999999"]),
    *without_number(RANK, "WORLD_SIZE", ["0"]),
    *without_number(TWO, "RANK LOCAL_RANK", ["2"]),
    *without_number(TWO, "MASTER_PORT", ["0", "65536", "99999999999"]),
    *without_number(TASK, "SLURM_PROCID SLURM_LOCALID", ["1"]),
    *without_number(TASK, "SLURM_STEP_NUM_TASKS", ["0"]),
]
LABELS = "--data labels.tsv --eval-data labels.tsv"
TUNE = "--model hf --output-dir new --epochs 1 --max-seq-length 32 --device cpu"
SMALL = "--vocab-size 400 --lengths 32 --dupe-factor 1 --validation-share 0.2"
RANKED = {
    "pretrain": (PRETRAIN, ("build",)),
    "doctor": ("megabert doctor --quick --device cpu --run-dir new", ()),
    "finetune": (f"megabert finetune classification {LABELS} {TUNE}", ("hf", "labels.tsv")),
}
QUICK = ("pretrain: RANK='first'", "doctor: RANK='first'")

LOOKING = (
    ("report", "megabert report run", ("run", "build")),
    ("watch", "megabert watch run --once", ("run",)),
    ("compare", "megabert compare run run", ("run",)),
    ("estimate", "megabert estimate", ()),
    ("fill-mask", "megabert fill-mask --model hf 'the [MASK]'", ("hf",)),
    ("similar", "megabert similar --model hf ship", ("hf",)),
    ("verify", "megabert-data verify build/instances/32", ("build",)),
    ("stats", "megabert-data stats build", ("build",)),
    ("peek", "megabert-data peek build/instances/32/train-00000-00.arrow:0", ("build",)),
)

# A file in the working folder that is named like a module of Python's. Executed, it would leave a trace.
PLANTED = [
    write(f"{name}.py", f"open('executed {name}', 'w').close()\nraise SystemExit(9)\n")
    for name in ("json", "pickle", "random", "tempfile", "torch", "numpy")
]
REVIEWS = "sentence\tlabel\n" + "a good film\t1\na bad film\t0\n" * 8
STARTING_PYTHON = (
    ("doctor", "megabert doctor --quick --device cpu --run-dir new", ()),
    ("build", f"megabert-data build --input text.jsonl --output new --workers 2 {SMALL}", ("text.jsonl",)),
    ("finetune glue", f"megabert finetune glue --data glue {TUNE}", ("hf",)),
)

CASES = [
    *(
        Case(
            name=f"{verb}: files named like modules of Python's in the working folder",
            given=(copy(*needs), *PLANTED, *(write(f"glue/SST-2/{part}.tsv", REVIEWS) for part in ("train", "dev"))),
            command=command,
            code=0,
            leaves=("new", "new/*"),
            timeout_s=240,
        )
        for verb, command, needs in STARTING_PYTHON
    ),
    *(
        Case(
            name=(name := f"{verb}: {says}={variables[says][:20]!a}"),
            given=(copy(*needs),),
            command=command,
            environment=dict(variables),
            code=2,
            says=(f"{says}={variables[says][:20]!a}"[:-1],),
            quick=name.startswith(QUICK),
        )
        for verb, (command, needs) in RANKED.items()
        for variables, says in (VARIABLES if verb == "pretrain" else VARIABLES[::5])
    ),
    *(
        Case(
            name=f"{verb}: standard output is full",
            given=(copy(*needs),),
            command=command,
            stdout="/dev/full",
            code=3,
            says=("No space left",),
            leaves=("run/loss.png",),
            quick=verb == "watch",
        )
        for verb, command, needs in LOOKING
    ),
]
