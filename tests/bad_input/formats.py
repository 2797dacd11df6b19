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

FORMATS = (
    Format(
        "shard",
        "build/instances/32/train-*.arrow",
        "megabert-data verify build/instances/32 --workers 1",
        SHARDS,
        vouched=True,
    ),
    Format(
        "shard, peek",
        "build/instances/32/train-*.arrow",
        "megabert-data peek build/instances/32/train-00000-00.arrow:3",
        SHARDS,
    ),
    Format(
        "manifest of shards",
        "build/instances/32/manifest.json",
        "megabert-data verify build/instances/32 --workers 1",
        SHARDS,
        is_json=True,
    ),
    Format(
        "manifest of shards, stats",
        "build/instances/32/manifest.json",
        "megabert-data stats build/instances/32",
        SHARDS,
        is_json=True,
    ),
    Format("plan of a build", f"{STATE}/plan.json", COMMANDS["build"], BUILD, is_json=True, removed=STALE),
    Format(
        "records of units",
        f"{STATE}/records/documents.jsonl",
        COMMANDS["build"],
        BUILD,
        is_json=True,
        removed=STALE,
    ),
    Format("configuration of a build", "build/build.json", COMMANDS["build"], BUILD, is_json=True, removed=STALE),
    Format(
        "tokenizer of shards",  # its recorded SHA-256 is that of what it does, not of its bytes
        "build/instances/32/tokenizer/tokenizer.json",
        DRY_RUN,
        SHARDS,
        is_json=True,
    ),
    Format("configuration of a run", "run/config.yaml", "megabert report run", ("run", "build/instances")),
    Format("metrics", "run/metrics.jsonl", "megabert report run", ("run", "build/instances"), is_json=True),
    Format("metrics, compare", "run/metrics.jsonl", "megabert compare run run", ("run",), is_json=True),
    Format("status", "run/status.json", "megabert watch run --once", ("run",), is_json=True),
    Format(
        "checkpoint manifest",
        "run/checkpoints/step_00000006/manifest.json",
        "megabert export run --to out",
        ("run",),
        is_json=True,
    ),
    Format(
        "checkpoint",
        "run/checkpoints/step_00000006/rank_00000.safetensors",
        "megabert export run --to out",
        ("run",),
        vouched=True,
    ),
    Format("latest", "run/checkpoints/latest", "megabert export run --to out", ("run",)),
    Format("config.json", "hf/config.json", FILL_MASK, ("hf",), is_json=True),
    Format("weights", "hf/model.safetensors", FILL_MASK, ("hf",)),
    Format("tokenizer.json", "hf/tokenizer.json", FILL_MASK, ("hf",), is_json=True),
    Format("tokenizer_config.json", "hf/tokenizer_config.json", FILL_MASK, ("hf",), is_json=True),
    Format(
        "results of a fine-tuning", "tuned/results.json", COMMANDS["tuned"], ("tuned", "hf", "labels.tsv"), is_json=True
    ),
    Format(
        "configuration of a fine-tuning",
        "tuned/finetune.json",
        COMMANDS["tuned"],
        ("tuned", "hf", "labels.tsv"),
        is_json=True,
    ),
    Format("labels, TSV", "labels.tsv", EVALUATE.replace("FILE", "labels.tsv"), ("tuned", "labels.tsv")),
    Format(
        "labels, JSON lines",
        "labels.jsonl",
        EVALUATE.replace("FILE", "labels.jsonl"),
        ("tuned", "labels.jsonl"),
        is_json=True,
    ),
    Format(
        "labels, Parquet", "labels.parquet", EVALUATE.replace("FILE", "labels.parquet"), ("tuned", "labels.parquet")
    ),
    Format("recipe", "recipe.yaml", f"{DRY_RUN} --recipe recipe.yaml", ("recipe.yaml", *SHARDS)),
    Format("text", "text.txt", f"megabert-data build --input text.txt {BUILD_FLAGS}", ("text.txt",)),
    Format(
        "JSON lines",
        "text.jsonl",
        f"megabert-data build --input text.jsonl {BUILD_FLAGS}",
        ("text.jsonl",),
        is_json=True,
    ),
    Format("gzip", "text.txt.gz", f"megabert-data build --input text.txt.gz {BUILD_FLAGS}", ("text.txt.gz",)),
    Format("Parquet", "text.parquet", f"megabert-data build --input text.parquet {BUILD_FLAGS}", ("text.parquet",)),
    Format("Arrow", "text.arrow", f"megabert-data build --input text.arrow {BUILD_FLAGS}", ("text.arrow",)),
    Format(
        "Wikipedia", "wiki.xml", f"megabert-data build --input wiki.xml --format wikipedia {BUILD_FLAGS}", ("wiki.xml",)
    ),
)
