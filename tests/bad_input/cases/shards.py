"""Shards whose manifest vouches for their bytes, but whose content makes no sense: another program wrote them."""

import ctypes
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from bad_input.given import copy, make, only, set_json
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
        entry["sha256"] = hashlib.sha256(content).hexdigest()
    path.write_text(json.dumps(manifest))


def column(table: pa.Table, name: str, how: Callable[[list], list]) -> pa.Table:
    """Change the values of a column."""
    place = table.schema.get_field_index(name)
    values = how(table.column(name).to_pylist())
    return table.set_column(place, table.schema.field(name), pa.array(values, table.schema.field(name).type))


def first_row(how: Callable[[list], list]) -> Callable[[list], list]:
    """Change the first row of a column of lists."""
    return lambda rows: [how(list(rows[0])), *rows[1:]]


MASKED, LABELS = "masked_lm_positions", "masked_lm_ids"
CONTENTS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "an id out of the vocabulary": lambda table: column(table, "input_ids", first_row(lambda row: [60_000, *row[1:]])),
    "an instance longer than its length": lambda table: column(table, "input_ids", first_row(lambda row: row * 9)),
    "an instance without tokens": lambda table: column(table, "input_ids", first_row(lambda row: [])),
    "a masked position after the instance": lambda table: column(table, MASKED, first_row(lambda row: [999, *row[1:]])),
    "a masked position twice": lambda table: column(table, MASKED, first_row(lambda row: [row[0]] * len(row))),
    "a label out of the vocabulary": lambda table: column(table, LABELS, first_row(lambda row: [60_000] * len(row))),
    "fewer labels than positions": lambda table: column(table, LABELS, first_row(lambda row: row[1:])),
    "a next-sentence label of 7": lambda table: column(table, "next_sentence_label", lambda rows: [7, *rows[1:]]),
    "a second segment past the end": lambda table: column(table, "segment_b_start", lambda rows: [999, *rows[1:]]),
    "a missing column": lambda table: table.drop_columns([table.column_names[0]]),
    "a surplus row": lambda table: pa.concat_tables([table, table.slice(0, 1)]),
    "no rows": lambda table: table.slice(0, 0),
    "columns of another type": lambda table: retyped(table, pa.list_(pa.int64()), pa.int64()),
    "large lists": lambda table: retyped(table, pa.large_list(pa.uint16()), None),
    "columns in another order": lambda table: table.select(table.column_names[::-1]),
    "a null row": lambda table: column(table, "input_ids", lambda rows: [None, *rows[1:]]),
    "a null in a row": lambda table: column(table, "input_ids", first_row(lambda row: [None, *row[1:]])),
    "a null label": lambda table: column(table, "next_sentence_label", lambda rows: [None, *rows[1:]]),
    "an offset past the values": lambda table: offsets(table, {5: 2**30}),
    "a negative offset": lambda table: offsets(table, {5: -(2**30)}),
    "offsets that do not ascend": lambda table: offsets(table, {5: -40}),
    "a last offset past the values": lambda table: offsets(table, {-1: 2**20}),
    "metadata that are no JSON": lambda table: described(table, b"vocab_size", b"{"),
    "metadata of another vocabulary": lambda table: described(table, b"vocab_size", b"500"),
    "metadata with a word for a number": lambda table: described(table, b"vocab_size", b'"400"'),
    "metadata that are missing": lambda table: table.replace_schema_metadata(None),
    "metadata of a column too many": lambda table: described(table, b"colour", b'"red"'),
}
READERS = {
    "train": PRETRAIN,
    "verify": f"megabert-data verify {SHARDS}",
    "peek": f"megabert-data peek {SHARDS}/train-00000-00.arrow:0",
}
NOT_OF_ONE_ROW = {"a surplus row", "no rows", "metadata of another vocabulary"}
"""What ``peek`` need not notice, or says in another way: it looks at one row and has no manifest."""
QUICK = {"verify": {"an offset past the values", "a null in a row"}, "peek": {"large lists"}}

SIZES = {
    "a vocabulary of a thousand million": ("metadata.vocab_size", 10**9),
    "a vocabulary of no pieces": ("metadata.vocab_size", 0),
    "a length of a million": ("metadata.max_seq_length", 10**6),
    "predictions below none": ("metadata.max_predictions_per_seq", -1),
    "a [MASK] out of the vocabulary": ("metadata.special_ids.mask", 400),
    "a [MASK] in words": ("metadata.special_ids.mask", "4"),
    "a share above all": ("metadata.masked_lm_prob", 15),
    "rows below none": ("shards.0.rows", -5),
    "metadata that are a list": ("metadata", []),
    "a configuration that is a list": ("config", []),
}
"""Fields of the manifest, and what is senseless there."""


def retyped(table: pa.Table, lists: pa.DataType, numbers: pa.DataType | None) -> pa.Table:
    """Give list columns one type, and the others another if one is given."""
    types = [lists if pa.types.is_list(field.type) else numbers or field.type for field in table.schema]
    fields = zip(table.column_names, types, strict=True)
    return table.cast(pa.schema(list(fields), metadata=table.schema.metadata))


def offsets(table: pa.Table, moves: dict[int, int]) -> pa.Table:
    """Move offsets of the input ids behind pyarrow's back."""
    ids = table.column("input_ids").combine_chunks()
    assert ids.offset == 0
    shifted = np.frombuffer(ids.buffers()[1], np.int32)[: len(ids) + 1].copy()
    for index, move in moves.items():
        shifted[index] += move
    where = np.asarray(ids.offsets).ctypes.data
    ctypes.memmove(where, shifted.ctypes.data, shifted.nbytes)
    place = table.schema.get_field_index("input_ids")
    return table.set_column(place, table.schema.field("input_ids"), ids)


def described(table: pa.Table, name: bytes, value: bytes) -> pa.Table:
    """Change the metadata of the table's schema."""
    return table.replace_schema_metadata({**table.schema.metadata, b"megabert." + name: value})


def more_tokens(folder: Path) -> None:
    """Let manifest and totals agree on tokens that the shard does not have."""
    path = folder / SHARDS / "manifest.json"
    manifest = json.loads(path.read_text())
    entry = manifest["shards"][0]
    entry["tokens"] += 1
    manifest["totals"][entry["split"]]["tokens"] += 1
    path.write_text(json.dumps(manifest))


CASES = [
    *(
        Case(
            name=f"{verb} on shards with {name}",
            given=(copy("build"), make(rewrite(how))),
            command=command,
            says=("train-00000-00.arrow",),
            quick=name in QUICK.get(verb, ()),
        )
        for verb, command in READERS.items()
        for name, how in CONTENTS.items()
        if (verb, name) not in {("peek", other) for other in NOT_OF_ONE_ROW}
    ),
    *(
        Case(
            name=f"{verb} on shards whose manifest has {name}",
            given=(copy("build"), step),
            command=command,
            says=(says,),
            quick=verb == "verify" and name == "a vocabulary of a thousand million",
        )
        for verb, command in list(READERS.items())[:2]
        for name, step, says in (
            *((name, set_json(f"{SHARDS}/manifest.json", *item), "manifest.json") for name, item in SIZES.items()),
            ("tokens that are not there", make(more_tokens), "train-"),
        )
    ),
    Case(
        name="report on a run whose shards were replaced by some with a label out of the vocabulary",
        given=(copy("build", "run"), make(rewrite(CONTENTS["a label out of the vocabulary"]))),
        command="megabert report run",
        says=("train-00000-00.arrow", "row 0", "60000", "400"),
    ),
    Case(
        name="report away from the folder where the run was started, which is still there",
        given=(copy("run"),),
        command="megabert report run",
        code=0,
        says=("loss.png",),
        leaves=("run/loss.png",),
    ),
    Case(
        name="report away from the folder where the run was started",
        given=(copy("run"), set_json("run/environment.json", "folder", "/gone")),
        command="megabert report run",
        says=("build/instances/32", "in the folder where the run was started"),
    ),
]
