"""Surroundings: variables that are no numbers, outputs that are full or closed, workers that die."""

from bad_input.given import copy
from bad_input.harness import Case
from bad_input.material import run_flags

PRETRAIN = f"megabert pretrain {run_flags()} --run-dir new"
SLURM = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}

# name, variables, what the message names
VARIABLES = (
    ("RANK of a word", {"RANK": "first", "WORLD_SIZE": "1"}, "RANK"),
    ("RANK of nothing", {"RANK": "", "WORLD_SIZE": "1"}, "RANK"),
    ("RANK outside", {"RANK": "5", "WORLD_SIZE": "1"}, "RANK"),
    ("RANK negative", {"RANK": "-1", "WORLD_SIZE": "1"}, "RANK"),
    ("RANK of a superscript", {"RANK": "\u00b2", "WORLD_SIZE": "3"}, "RANK"),
    ("WORLD_SIZE of a word", {"RANK": "0", "WORLD_SIZE": "two"}, "WORLD_SIZE"),
    ("WORLD_SIZE of zero", {"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE"),
    ("LOCAL_RANK of a word", {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "x"}, "LOCAL_RANK"),
    (
        "MASTER_PORT of a word",
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"},
        "MASTER_PORT",
    ),
    ("SLURM_PROCID of a word", {**SLURM, "SLURM_PROCID": "x"}, "SLURM_PROCID"),
    ("SLURM_NTASKS of a word", {**SLURM, "SLURM_NTASKS": "x"}, "SLURM_NTASKS"),
    ("SLURM_LOCALID of a word", {**SLURM, "SLURM_LOCALID": "x"}, "SLURM_LOCALID"),
)

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

CASES = [
    *(
        Case(
            name=f"pretrain: {name}",
            given=(copy("build"),),
            command=PRETRAIN,
            environment=dict(variables),
            code=(2, 3),
            says=(says,),
            quick=name == "RANK of a word",
        )
        for name, variables, says in VARIABLES
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
