"""Which weights ``megabert pretrain`` asks for."""

import pytest

from megabert.commands.pretrain import _initial
from megabert.config.recipes import load_run_config
from megabert.errors import MegabertError


def test_run_with_a_checkpoint_needs_its_source_no_more(tmp_path):
    config = load_run_config("debug", flags={"init_from": str(tmp_path / "moved")})
    with pytest.raises(MegabertError, match="moved"):
        _initial(config, tmp_path)
    (tmp_path / "checkpoints" / "step_00000002").mkdir(parents=True)  # `latest` was lost with a disk
    assert _initial(config, tmp_path) is None
