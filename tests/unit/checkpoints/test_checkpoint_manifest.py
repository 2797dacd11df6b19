"""A checkpoint manifest whose own hash is right, but not what it says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from megabert.checkpoints.format import _CONTEXT, MANIFEST, read_checkpoint_manifest
from megabert.checkpoints.loading import find_checkpoint, read_masters
from megabert.foundation.errors import CheckpointError
from megabert.foundation.json_files import seal


def signed(folder: Path, **parameter: Any) -> Path:
    """Write a checkpoint of one parameter, a file of four numbers, and a manifest with a right hash."""
    folder.mkdir(parents=True)
    save_file({f"{kind}/w/0": torch.ones(4) for kind in ("master", "exp_avg", "exp_avg_sq")}, folder / "a.safetensors")
    stored = {"shape": [2, 2], "fragments": [["a.safetensors", 0, 4]], **parameter}
    content = {
        **{"step": 1, "world_size": 1, "zero_stage": 1, "engine_state": {}, "trainer_state": {}, "versions": {}},
        "files": {"a.safetensors": {"bytes": (folder / "a.safetensors").stat().st_size, "sha256": ""}},
        "parameters": {"w": stored},
        "format_version": 1,
    }
    (folder / MANIFEST).write_bytes(seal(content, _CONTEXT))
    return folder


def test_a_sound_manifest_is_read(tmp_path):
    assert torch.equal(read_masters(signed(tmp_path / "step"))["w"], torch.ones(2, 2))


def test_trainer_state_without_its_fields_is_refused(tmp_path):
    manifest = read_checkpoint_manifest(signed(tmp_path / "step"))
    with pytest.raises(CheckpointError, match=r"trainer state of step 1: .*step"):
        _ = manifest.run


@pytest.mark.parametrize(
    ("parameter", "what"),
    [
        ({"shape": [10**13]}, r"w has shape \[10000000000000\], its fragments 4 elements"),
        ({"shape": [10**13], "fragments": [["a.safetensors", 0, 10**13]]}, "a.safetensors is too small for its"),
        ({"shape": [10**400]}, "shape.0"),
        ({"shape": [-2, -2]}, "shape.0"),
        ({"fragments": [["a.safetensors", 0, 2], ["a.safetensors", 0, 2]]}, "fragments of w do not cover it once"),
        ({"fragments": [["b.safetensors", 0, 4]]}, "fragments of w do not cover it once"),
        ({"fragments": []}, "its fragments 0 elements"),
    ],
)
def test_shapes_that_the_files_do_not_fill_are_refused(parameter, what, tmp_path):
    with pytest.raises(CheckpointError, match=what):
        read_checkpoint_manifest(signed(tmp_path / "step", **parameter))


@pytest.mark.parametrize("other", [torch.ones(4, dtype=torch.int32), torch.ones(2, 2)])
def test_fragments_of_another_type_are_refused(other, tmp_path):
    folder = signed(tmp_path / "step")
    save_file({"master/w/0": other}, folder / "a.safetensors")
    with pytest.raises(CheckpointError, match="as master of w, not 4 numbers of float32"):
        read_masters(folder)


@pytest.mark.parametrize("which", ["0_4", "04", " 4", "+4", "\u0664", "4.0", "", "9" * 400])
def test_a_step_is_named_by_its_digits_alone(which, tmp_path):
    signed(tmp_path / "step_00000004")
    with pytest.raises(CheckpointError, match="allowed are last, best and a step"):
        find_checkpoint(tmp_path, which)
