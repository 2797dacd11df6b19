"""Runs with a file of tile sizes: its hash is recorded, and a file of another device is refused."""

import hashlib
import json

import torch
from support.runs import finished

from megabert.ops.triton_support.tuned_tiles import identity

SHORT = {
    "phases.0.steps": 2,
    "phases.0.global_batch_size": 4,
    "phases.1.steps": 1,
    "phases.1.global_batch_size": 2,
    "validation.max_instances": 4,
}


def test_a_runs_file_of_tile_sizes_is_recorded(shards, tmp_path):
    path = tmp_path / "tiles.json"
    path.write_text(json.dumps(identity(torch.device("cpu")) | {"tiles": {"bias_gelu 64": [8, 64, 4, 1]}}))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    run = finished(tmp_path / "run", shards, flags={**SHORT, "ops.tile_sizes": path})
    assert list(run.losses()) == [1, 2, 3]
    assert f"tile sizes: {path}, SHA-256 {sha256}" in run.output
    environment = json.loads((run.run_dir / "environment.json").read_text())
    assert environment["tile_sizes_sha256"] == sha256
