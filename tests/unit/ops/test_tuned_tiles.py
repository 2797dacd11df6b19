"""Files of tile sizes: what is refused, and which candidates are worth a compilation."""

import json

import pytest
import torch

from megabert.foundation.errors import ConfigError
from megabert.ops.proof.tuning import FREE, may_fit, neighbours
from megabert.ops.triton_support import tuned_tiles
from megabert.ops.triton_support.tile_sizes import attention_tiles
from megabert.ops.triton_support.tuned_tiles import identity, use_file

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def committed_afterwards():
    yield
    tuned_tiles.use({})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "NVIDIA H100"}, r"another device \(NVIDIA H100\); here: cpu"),
        ({"triton": "2.0"}, r"another version of Triton \(2\.0\)"),
        ({"code": "0" * 64}, r"another text of megabert/ops"),
        ({"tiles": {"layer_norm forward 16": [3, 16, 1, 1]}}, r"no power of two"),
        ({"tiles": {"layer_norm forward 16": [0, 16, 1, 1]}}, r"greater than or equal to 1"),
        ({"tiles": {"layer_norm forward 16": [1 << 20, 16, 1, 1]}}, r"less than or equal to 65536"),
        ({"tiles": {"layer_norm forward 16": [1, 16, 1]}}, r"tiles"),
        ({"tile": {}}, r"tile"),
    ],
    ids=str,
)
def test_a_file_that_does_not_fit_is_refused_with_the_remedy(changes, message, tmp_path):
    path = tmp_path / "tiles.json"
    path.write_text(json.dumps(identity(CPU) | {"tiles": {}} | changes))
    with pytest.raises(ConfigError, match=message) as refused:
        use_file(str(path), CPU)
    assert str(refused.value).startswith(str(path))
    assert "megabert tune --save FILE" in str(refused.value)
    assert tuned_tiles.sha256_in_use() == ""


@pytest.mark.parametrize("content", [None, "", "{", "[]", "\x00"])
def test_a_missing_or_damaged_file_is_refused(content, tmp_path):
    path = tmp_path / "tiles.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match="megabert tune --save FILE"):
        use_file(str(path), CPU)


@pytest.mark.parametrize("kind", FREE)
def test_candidates_differ_in_one_number_and_fit(kind):
    committed = (64, 128, 8, 2)
    found = list(neighbours(f"{kind} 64", committed, head_width=64, device=CPU))
    assert found
    for sizes in found:
        assert sum(a != b for a, b in zip(sizes, committed, strict=True)) == 1
        assert may_fit(f"{kind} 64", sizes, head_width=64, device=CPU)


def test_sequences_above_512_take_the_tile_that_was_tuned_at_512():
    tuned_tiles.use({"attention forward 64 512": (128, 32, 8, 2)})
    for length, columns in ((256, 64), (512, 32), (1024, 32)):
        assert attention_tiles((9, 0), head_width=64, max_seqlen=length, itemsize=2).forward.columns == columns


def test_what_exceeds_registers_or_shared_memory_is_not_tried():
    assert may_fit("attention forward 64 512", (128, 64, 8, 2), head_width=64, device=CPU)
    assert not may_fit("attention forward 64 512", (128, 512, 8, 2), head_width=64, device=CPU)  # 256 registers
    assert not may_fit("attention forward 64 512", (128, 128, 8, 4), head_width=64, device=CPU)  # 144 KiB
    assert not may_fit("attention forward 64 512", (128, 8, 8, 2), head_width=64, device=CPU)  # too small a product
