"""Shards whose manifest vouches for their bytes, but whose content makes no sense: another program wrote them."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from bad_input.given import copy, make, only
from bad_input.harness import Case
from bad_input.material import run_flags

SHARDS = "build/instances/32"
PRETRAIN = f"megabert pretrain {run_flags()} --run-dir new"


def rewrite(how: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    """Return what changes the table of the first training shard, and the manifest accordingly."""

    def change(folder: Path) -> None:
        shard = only(folder / SHARDS, "train-*.arrow")
        with pa.ipc.open_file(shard) as reader:
            table, options = reader.read_all(), pa.ipc.IpcWriteOptions(compression="zstd")
        changed = how(table)
        with pa.ipc.new_file(shard, changed.schema, options=options) as writer:
            writer.write_table(changed)
        sign(folder)

    return change


def sign(folder: Path) -> None:
    """Let the manifest vouch for the shards as they are."""
    path = folder / SHARDS / "manifest.json"
    manifest = json.loads(path.read_text())
    for entry in manifest["shards"]:
        content = (folder / SHARDS / entry["file"]).read_bytes()
        entry["sha256"], entry["bytes"] = hashlib.sha256(content).hexdigest(), len(content)
    path.write_text(json.dumps(manifest))


def column(table: pa.Table, name: str, how: Callable[[list], list]) -> pa.Table:
    """Change the values of a column."""
    place = table.schema.get_field_index(name)
    values = how(table.column(name).to_pylist())
    return table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))


def first_row(how: Callable[[list], list]) -> Callable[[list], list]:
    """Change the first row of a column of lists."""
    return lambda rows: [how(list(rows[0])), *rows[1:]]


CONTENTS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "an id behind the vocabulary": lambda table: column(table, "input_ids", first_row(lambda row: [60_000, *row[1:]])),
    "an instance longer than its length": lambda table: column(table, "input_ids", first_row(lambda row: row * 9)),
    "an instance without tokens": lambda table: column(table, "input_ids", first_row(lambda row: [])),
    "a masked position behind the instance": lambda table: column(
        table, "masked_lm_positions", first_row(lambda row: [999, *row[1:]])
    ),
    "a masked position twice": lambda table: column(
        table, "masked_lm_positions", first_row(lambda row: [row[0]] * len(row))
    ),
    "a label behind the vocabulary": lambda table: column(
        table, "masked_lm_ids", first_row(lambda row: [60_000] * len(row))
    ),
    "fewer labels than positions": lambda table: column(table, "masked_lm_ids", first_row(lambda row: row[1:])),
    "a next-sentence label of 7": lambda table: column(table, "next_sentence_label", lambda rows: [7, *rows[1:]]),
    "a second segment behind the end": lambda table: column(table, "segment_b_start", lambda rows: [999, *rows[1:]]),
    "a missing column": lambda table: table.drop_columns([table.column_names[0]]),
    "a surplus row": lambda table: pa.concat_tables([table, table.slice(0, 1)]),
    "no rows": lambda table: table.slice(0, 0),
    "columns of another type": lambda table: table.cast(
        pa.schema(
            [
                (field.name, pa.list_(pa.int64()) if pa.types.is_list(field.type) else pa.int64())
                for field in table.schema
            ]
        )
    ),
}
READERS = {"train": PRETRAIN, "verify": f"megabert-data verify {SHARDS}"}

CASES = [
    Case(
        name=f"{verb} on shards with {name}",
        given=(copy("build"), make(rewrite(how))),
        command=command,
        code=3,
        says=("train-00000-00.arrow",),
        quick=False,
    )
    for verb, command in READERS.items()
    for name, how in CONTENTS.items()
]
