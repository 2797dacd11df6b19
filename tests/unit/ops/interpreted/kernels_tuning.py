"""``megabert tune`` with a clock that prefers a tile: it is written, checked, used by its file, and repeats."""

import json
from types import SimpleNamespace

import pytest
import torch
from unit.ops.interpreted.conftest import narrow_shapes

from megabert.ops.proof import tuning
from megabert.ops.proof.tuning import tune
from megabert.ops.triton_support import tuned_tiles
from megabert.ops.triton_support.tile_sizes import attention_tiles, layer_norm_tiles

CPU = torch.device("cpu")
SHAPES = narrow_shapes(torch.float16)
PREFERRED = {"layer_norm forward 16": (64, 16, 1, 1), "attention forward 16 16": (64, 32, 4, 2)}


@pytest.fixture(autouse=True)
def committed_afterwards():
    yield
    tuned_tiles.use({})


def fake_ms(call):
    """Run the call, and say that it is fast if a preferred tile is in use."""
    call()
    return 1.0 if any(tuned_tiles._in_use.get(name) == sizes for name, sizes in PREFERRED.items()) else 2.0


def tuned(path, ops=("layer_norm", "bias_gelu"), **options):
    given = {"tokens": 16, "minutes": 5.0, "time_ms": fake_ms, **options}
    return {found.name: found for found in tune([(op, SHAPES) for op in ops], CPU, path, **given)}


def test_faster_tiles_are_written_and_used_by_their_file(tmp_path):
    path = tmp_path / "tiles.json"
    found = tuned(path, SHAPES.ops)
    assert {name for name, launch in found.items() if launch.best != launch.committed} == set(PREFERRED)
    assert {name: found[name].best for name in PREFERRED} == PREFERRED
    content = json.loads(path.read_text())
    assert content["tiles"].keys() == found.keys() >= {"bias_gelu 24", "attention backward 16 16"}
    assert content["ms"]["layer_norm forward 16"] == [2.0, 1.0]
    committed = layer_norm_tiles(16)
    sha256 = tuned_tiles.use_file(str(path), CPU)
    assert len(sha256) == 64
    assert layer_norm_tiles(16) != committed
    assert layer_norm_tiles(16)[0].rows == 64
    assert attention_tiles((9, 0), head_width=16, max_seqlen=16, itemsize=2).forward.columns == 32
    assert tuned_tiles.use_file(None, CPU) == ""
    assert layer_norm_tiles(16) == committed
    assert tuned(path, SHAPES.ops) == {}  # everything is there


def test_a_tile_that_gives_wrong_numbers_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "compare", lambda *_: [SimpleNamespace(passes=not tuned_tiles._in_use)])
    found = tuned(tmp_path / "tiles.json")
    assert all(launch.best == launch.committed for launch in found.values())


def test_a_candidate_that_cannot_run_is_passed_over(tmp_path):
    def only_committed(call):
        if tuned_tiles._in_use:
            raise RuntimeError("out of resource: shared memory")
        return 1.0

    found = tuned(tmp_path / "tiles.json", time_ms=only_committed)
    assert [dict(launch.times) for launch in found.values()] == [{}] * len(found)


def test_time_runs_out_and_the_next_call_does_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "compare", lambda *_: [])
    path, clock = tmp_path / "tiles.json", iter(range(10**6))
    first = tuned(path, minutes=0.2, now=lambda: float(next(clock)))  # a look at the clock takes a second
    assert first
    rest = tuned(path)
    assert rest
    assert not first.keys() & rest.keys()
    assert json.loads(path.read_text())["tiles"].keys() == first.keys() | rest.keys()
    whole = tuned(tmp_path / "whole.json")
    assert whole == first | rest, "no launch was left half tuned"
