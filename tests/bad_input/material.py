"""Sound folders and files of every kind that a command reads, made once by the commands themselves."""

import gzip
import json
import shutil
from html import escape
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from bad_input.harness import CommandServer
from support.bundled_corpus import CORPUS
from support.runs import TINY

RUN_FLAGS = {**TINY, "phases.0.max_seq_length": 32, "phases.0.steps": 4, "phases.1.max_seq_length": 64}
RUN_FLAGS |= {"phases.1.steps": 2, "checkpoint.every_steps": 2, "validation.every_steps": 3, "micro_batch_tokens": 256}


def run_flags(**changes: object) -> str:
    """Return the flags of the material's run, some changed."""
    words = [f"--{name} {value}" for name, value in {**RUN_FLAGS, **changes}.items() if value is not None]
    return " ".join(["--recipe debug --device cpu --data.path build", *words])


COMMANDS = {
    "build": "megabert-data build --input text.jsonl --output build --vocab-size 400 --lengths 32 64 --workers 1 "
    "--validation-share 0.2 --dupe-factor 1",
    "run": f"megabert pretrain {run_flags()} --run-dir run",
    "hf": "megabert export run --to hf",
    "vectors": "megabert export hf --to vectors --sentence-transformers mean",
    "tuned": "megabert finetune classification --model hf --data labels.tsv --eval-data labels.tsv --output-dir tuned "
    "--epochs 1 --max-seq-length 32 --device cpu",
}


def write_texts(folder: Path) -> list[str]:
    """Write the corpus as JSON lines; return its documents."""
    documents = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    texts = [document["text"][:4000] for document in documents[::12]]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return texts


def make_material(folder: Path, server: CommandServer) -> Path:
    """Make the corpus, a build, a run, an export and a fine-tuning, in their order."""
    texts = write_texts(folder)
    (folder / "text.txt").write_text("\n\n".join(texts))
    lines = [sentence for text in texts for sentence in text.split(". ") if 20 < len(sentence) < 200][:60]
    rows = [f"{' '.join(line.split())}\t{'long' if len(line) > 90 else 'short'}" for line in lines]
    (folder / "labels.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    (folder / "lines.txt").write_text("\n".join(lines) + "\n")
    write_other_forms(folder, texts, [dict(zip(("text", "label"), row.split("\t"), strict=True)) for row in rows])
    for name, command in COMMANDS.items():
        outcome = server.run(command, folder, folder / "outputs" / name, timeout_s=200)
        assert outcome.code == 0, f"{command}\n{outcome.stdout}\n{outcome.stderr}"
    shutil.copy2(folder / "run" / "config.yaml", folder / "recipe.yaml")
    return folder


def write_other_forms(folder: Path, texts: list[str], labelled: list[dict[str, str]]) -> None:
    """Write the corpus and the labelled rows in every other format that we read."""
    (folder / "text.txt.gz").write_bytes(gzip.compress((folder / "text.txt").read_bytes(), mtime=0))
    table = pa.table({"text": texts})
    pq.write_table(table, folder / "text.parquet")
    with pa.ipc.new_file(folder / "text.arrow", table.schema) as writer:
        writer.write_table(table)
    page = "<page><title>{}</title><ns>0</ns><id>1</id><revision><id>1</id><text>{}</text></revision></page>\n"
    pages = [page.format(f"Page {i}", f"This is [[a link|one]]. {escape(text)}") for i, text in enumerate(texts)]
    (folder / "wiki.xml").write_text(f"<mediawiki>\n{''.join(pages)}</mediawiki>\n")
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in labelled))
    pq.write_table(pa.Table.from_pylist(labelled), folder / "labels.parquet")
