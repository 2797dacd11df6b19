"""Every kind of file that we write or read, with the quickest command that reads it."""

from bad_input.fuzz import Format
from bad_input.material import COMMANDS, run_flags

BUILD_FLAGS = "--output out --workers 1 --vocab-size 300 --lengths 32 --validation-share 0 --dupe-factor 1"
BUILD = ("build", "text.jsonl")
SHARDS = ("build/instances",)
STATE = "build/work"
STALE = ("build/instances/*/manifest.json",)
DRY_RUN = f"megabert pretrain {run_flags()} --run-dir new --dry-run"
FILL_MASK = "megabert fill-mask --model hf 'the [MASK] ship'"
EVALUATE = "megabert evaluate --model tuned/seed_42/model --data FILE --device cpu"

EXPORT = "megabert export run --to out"
SHARD, MANIFEST = "build/instances/32/train-*.arrow", "build/instances/32/manifest.json"
CHECKPOINT = "run/checkpoints/step_00000006"
RECORDS = f"{STATE}/records/documents.jsonl"
TUNED = ("tuned", "hf", "labels.tsv")
JSON = {"is_json": True}
AGAIN = {**JSON, "removed": STALE}


def build_of(file: str, flags: str = "") -> tuple[str, str, tuple[str, ...]]:
    """Return a file of text, the command that builds shards of it, and what that needs."""
    return file, f"megabert-data build --input {file} {flags}{BUILD_FLAGS}", (file,)


def labels(file: str) -> tuple[str, str, tuple[str, ...]]:
    """Return a file of labels, the command that scores a model with it, and what that needs."""
    return file, EVALUATE.replace("FILE", file), ("tuned", file)


FORMATS = (
    Format("shard", SHARD, "megabert-data verify build/instances/32 --workers 1", SHARDS, vouched=True),
    Format("shard, peek", SHARD, "megabert-data peek build/instances/32/train-00000-00.arrow:3", SHARDS),
    Format("manifest of shards", MANIFEST, "megabert-data verify build/instances/32 --workers 1", SHARDS, **JSON),
    Format("manifest of shards, stats", MANIFEST, "megabert-data stats build/instances/32", SHARDS, **JSON),
    Format("plan of a build", f"{STATE}/plan.json", COMMANDS["build"], BUILD, **AGAIN),
    Format("records of units", RECORDS, COMMANDS["build"], BUILD, **AGAIN),
    Format("configuration of a build", "build/build.json", COMMANDS["build"], BUILD, **AGAIN),
    # the recorded SHA-256 of a tokenizer is that of what it does, not of its bytes
    Format("tokenizer of shards", "build/instances/32/tokenizer/tokenizer.json", DRY_RUN, SHARDS, **JSON),
    Format("configuration of a run", "run/config.yaml", "megabert report run", ("run", "build/instances")),
    Format("metrics", "run/metrics.jsonl", "megabert report run", ("run", "build/instances"), **JSON),
    Format("metrics, compare", "run/metrics.jsonl", "megabert compare run run", ("run",), **JSON),
    Format("status", "run/status.json", "megabert watch run --once", ("run",), **JSON),
    Format("checkpoint manifest", f"{CHECKPOINT}/manifest.json", EXPORT, ("run",), **JSON),
    Format("checkpoint", f"{CHECKPOINT}/rank_00000.safetensors", EXPORT, ("run",), vouched=True),
    Format("latest", "run/checkpoints/latest", EXPORT, ("run",)),
    Format("config.json", "hf/config.json", FILL_MASK, ("hf",), **JSON),
    Format("weights", "hf/model.safetensors", FILL_MASK, ("hf",)),
    Format("tokenizer.json", "hf/tokenizer.json", FILL_MASK, ("hf",), **JSON),
    Format("tokenizer_config.json", "hf/tokenizer_config.json", FILL_MASK, ("hf",), **JSON),
    Format("results of a fine-tuning", "tuned/results.json", COMMANDS["tuned"], TUNED, **JSON),
    Format("configuration of a fine-tuning", "tuned/finetune.json", COMMANDS["tuned"], TUNED, **JSON),
    Format("labels, TSV", *labels("labels.tsv")),
    Format("labels, JSON lines", *labels("labels.jsonl"), **JSON),
    Format("labels, Parquet", *labels("labels.parquet")),
    Format("recipe", "recipe.yaml", f"{DRY_RUN} --recipe recipe.yaml", ("recipe.yaml", *SHARDS)),
    Format("text", *build_of("text.txt")),
    Format("JSON lines", *build_of("text.jsonl"), **JSON),
    Format("gzip", *build_of("text.txt.gz")),
    Format("Parquet", *build_of("text.parquet")),
    Format("Arrow", *build_of("text.arrow")),
    Format("Wikipedia", *build_of("wiki.xml", "--format wikipedia ")),
)
