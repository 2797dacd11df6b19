"""Reading what trackers have kept, by their own libraries, and what they should have kept."""

import json
import subprocess
import sys
from pathlib import Path

HEADER = 7
"""Bytes before the first record of a wandb log, and before each piece of a record: checksum 4, length 2, kind 1."""
BLOCK = 32 << 10
_READ_TRACKIO = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage as storage
project = sys.argv[1]
records = storage.get_run_records(project)
print(json.dumps([
    {run["id"]: read(project, run["name"], run_id=run["id"]) for run in records}
    for read in (storage.get_logs, storage.get_run_config)
]))
"""
Points = dict[int, dict[str, float]]


def expected_points(run_dir: Path) -> Points:
    """Return the numbers of ``metrics.jsonl`` by step and by the names that trackers show."""
    points: Points = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        values = points.setdefault(row.pop("step"), {})
        for tag, value in row.items():
            if isinstance(value, dict):
                values.update({f"{tag}/{part}": number for part, number in value.items()})
            elif value is not None:
                values[f"progress/{tag}" if tag in ("phase", "phase_step") else tag] = value
    return points


def read_trackio(project: str) -> tuple[dict[str, Points], dict[str, dict]]:
    """Return points and configuration of each run of a project, by its id; TRACKIO_DIR says where.

    Raises:
        AssertionError: A step has a value twice.
    """
    command = [sys.executable, "-c", _READ_TRACKIO, project]
    runs, configs = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    return {name: _by_step(rows) for name, rows in runs.items()}, configs


def _by_step(rows: list[dict]) -> Points:
    points: Points = {}
    for row in rows:
        values = points.setdefault(row.pop("step"), {})
        row.pop("timestamp")
        assert set(row) & set(values) <= {"progress/phase"}, "a value is there twice"
        values.update(row)
    return points


def read_wandb(run_dir: Path) -> tuple[Points, dict]:
    """Return points and configuration of the one offline session below a run folder.

    Raises:
        AssertionError: There is not one session, or it has a step twice.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = (run_dir / "wandb").glob("offline-run-*/*.wandb")
    points: Points = {}
    config = {}
    for content in _records(path.read_bytes()):
        record = Record.FromString(content)
        if record.WhichOneof("record_type") == "run":
            config.update({item.key: json.loads(item.value_json) for item in record.run.config.update})
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            step = values.pop("_step", record.history.step.num)
            assert step not in points, "a step is there twice"
            points[step] = {name: value for name, value in values.items() if not name.startswith("_")}
    return points, config


def _records(content: bytes) -> list[bytes]:
    """Return the records of a log in LevelDB's format: blocks, in which each piece of a record follows its header."""
    assert content[:4] == b":W&B"
    records, pieces, position = [], b"", HEADER
    while position + HEADER <= len(content):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        position += HEADER
        pieces += content[position : position + length]
        position += length
        if kind in (1, 4):  # whole, or the last piece
            records.append(pieces)
            pieces = b""
    return records
