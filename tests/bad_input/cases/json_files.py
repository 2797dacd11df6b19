"""Every JSON file that we write or read, damaged in every way, under every command that reads it."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bad_input.given import DAMAGES, change, copy, into_folder, remove
from bad_input.harness import Case
from bad_input.material import COMMANDS, run_flags


class Reader(NamedTuple):
    """A file and a command that reads it."""

    file: str
    command: str
    needs: tuple[str, ...]
    """Material that the command needs."""
    code: int | tuple[int, ...]
    says: str
    """What the message names: the file, or the folder where it shows only there."""
    stale: tuple[str, ...] = ()
    """Removed before, so that the command has to read the file."""
    accepts: Mapping[str, str] = {}
    """Damages that are no reason to stop, and what is said of each; nothing where the file is right in spite of it."""
    leaves: tuple[str, ...] = ()


PRETRAIN = f"megabert pretrain {run_flags()} --run-dir run"
PRETRAIN_NEW = f"megabert pretrain {run_flags()} --run-dir new"
RUN, BUILD, HF = ("run", "build"), ("build", "text.jsonl"), ("hf", "labels.tsv", "lines.txt")
TUNED = (*HF, "tuned")
MANIFEST = "build/instances/32/manifest.json"
STATE = "build/work"
PLAN, RECORD = f"{STATE}/plan.json", f"{STATE}/records/instances-32.jsonl"
METRICS, CHECKPOINT = "run/metrics.jsonl", "run/checkpoints/step_00000006/manifest.json"
BUILD_AGAIN, TUNE_AGAIN = COMMANDS["build"], COMMANDS["tuned"]
TUNE_NEW = TUNE_AGAIN.replace("--output-dir tuned", "--output-dir new")

DAMAGED_LINE = "metrics.jsonl: 1 damaged lines are left out, the first is line 1"
# Rows before a cut one are shown, and those after a damaged one; rows of metrics hold no words.
OF_METRICS = {"cut": "", "numbers for words": "", "bytes": DAMAGED_LINE}
# tokenizer.json holds all that a tokenizer needs, and no number of this file counts.
OF_TOKENIZER_CONFIG = dict.fromkeys(("empty object", "words for numbers"), "")
# The summary is written anew from the results of the seeds.
OF_SUMMARY = dict.fromkeys(DAMAGES, "")
# A file of no fields states none, and neither numbers of modules, widths nor prompts that are no default are read.
OF_MODULES = {
    "modules.json": ("words for numbers",),
    "1_Pooling/config.json": ("empty object", "words for numbers", "numbers for words"),
    "sentence_bert_config.json": ("empty object", "numbers for words"),
    "config_sentence_transformers.json": ("empty object", "words for numbers", "numbers for words", "nulls"),
}
VERIFY = "megabert-data verify build/instances/32"
SIMILAR = "megabert similar --model hf ship"
EVALUATE = "megabert evaluate --model tuned/seed_42/model --data labels.tsv"
EMBED, VECTORS = "megabert embed lines.txt --model vectors --output new.npy", ("vectors", "lines.txt")
SUMMARY = "tuned/results.json"

READERS = (
    Reader(MANIFEST, VERIFY, BUILD, 3, "manifest.json"),
    Reader(MANIFEST, "megabert-data stats build/instances/32", BUILD, 3, "manifest.json"),
    Reader(MANIFEST, PRETRAIN_NEW, BUILD, 3, "manifest.json"),
    # So is a damaged plan: it is warned of, and made again.
    Reader(
        PLAN, BUILD_AGAIN, BUILD, (0, 3), "", stale=(MANIFEST,), leaves=(MANIFEST, f"{STATE}/*", "build/documents/*")
    ),
    # A damaged record is one of a unit that was not finished: the unit is done again.
    Reader(RECORD, BUILD_AGAIN, BUILD, (0, 3), "", stale=(MANIFEST,), leaves=(MANIFEST, RECORD)),
    Reader("build/build.json", BUILD_AGAIN, BUILD, 3, "build.json", stale=(MANIFEST,)),
    # Every field of the status has a default.
    Reader("run/status.json", "megabert watch run --once", RUN, 4, "status.json", accepts={"empty object": ""}),
    # A run that has just begun has no rows.
    Reader(METRICS, "megabert report run", RUN, 4, "metrics.jsonl", accepts=OF_METRICS, leaves=("run/loss.png",)),
    Reader(METRICS, "megabert compare run run", RUN, 4, "metrics.jsonl", accepts=OF_METRICS),
    Reader(METRICS, "megabert watch run --once", RUN, 4, "metrics.jsonl", accepts=OF_METRICS | {"empty": ""}),
    Reader(CHECKPOINT, "megabert export run --to out", RUN, 4, "manifest.json"),
    Reader(CHECKPOINT, "megabert fill-mask --model run 'a [MASK] b'", RUN, 4, "manifest.json"),
    Reader("hf/config.json", "megabert fill-mask --model hf 'a [MASK] b'", HF, (2, 3), "config.json"),
    Reader("hf/config.json", "megabert embed lines.txt --model hf", HF, (2, 3), "config.json"),
    Reader("hf/config.json", TUNE_NEW, HF, (2, 3), "config.json"),
    Reader("hf/tokenizer.json", "megabert fill-mask --model hf 'a [MASK] b'", HF, 3, "tokenizer"),
    Reader("hf/tokenizer.json", TUNE_NEW, HF, 3, "tokenizer"),
    Reader("hf/tokenizer_config.json", SIMILAR, HF, 3, "tokenizer_config.json", accepts=OF_TOKENIZER_CONFIG),
    *(
        Reader(
            f"vectors/{name}", EMBED, VECTORS, (2, 3), name, accepts=dict.fromkeys(accepted, ""), leaves=("new.npy",)
        )
        for name, accepted in OF_MODULES.items()
    ),
    Reader("build/instances/32/tokenizer/tokenizer.json", f"{VERIFY} --workers 1", BUILD, 3, "tokenizer"),
    Reader(SUMMARY, TUNE_AGAIN, TUNED, 4, "results.json", accepts=OF_SUMMARY, leaves=(SUMMARY,)),
    Reader("tuned/finetune.json", TUNE_AGAIN, TUNED, 4, "finetune.json"),
    # It names files, which nobody reads.
    Reader("tuned/seed_42/result.json", TUNE_AGAIN, TUNED, 4, "result.json", accepts={"numbers for words": ""}),
    Reader("tuned/seed_42/model/config.json", EVALUATE, ("tuned", "labels.tsv"), 2, "config.json"),
)


def _cases() -> Iterator[Case]:
    for reader in READERS:
        command = " ".join(reader.command.split()[:2])
        for damage, how in DAMAGES.items():
            is_accepted = damage in reader.accepts
            yield Case(
                name=f"{command}: {reader.file} {damage}",
                given=(copy(*reader.needs), *(remove(name) for name in reader.stale), change(reader.file, how)),
                command=reader.command,
                code=0 if is_accepted else reader.code,
                says=(reader.accepts.get(damage, reader.says),),
                leaves=reader.leaves,
                quick=damage == "words for numbers" and reader.command == VERIFY,
            )
        codes = reader.code if isinstance(reader.code, tuple) else (reader.code,)
        yield Case(
            name=f"{command}: {reader.file} is a folder",
            given=(copy(*reader.needs), *(remove(name) for name in reader.stale), into_folder(reader.file)),
            command=reader.command,
            code=tuple({*codes, 3}),  # what the system refuses is always 3
            says=(reader.says,),
            leaves=reader.leaves,
        )


CASES = list(_cases())
