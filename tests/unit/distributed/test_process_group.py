"""A world of one rank."""

import pytest

from megabert.distributed.process_group import distributed_world


def test_start_tries_no_compiler_for_deepspeeds_ops(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    import deepspeed.ops

    def try_compilers():
        pytest.fail("DeepSpeed looked for compilers")

    monkeypatch.delattr(deepspeed.ops, "__compatible_ops__", raising=False)
    monkeypatch.setattr(deepspeed.ops, "_probe_compatible_ops", try_compilers)
    with distributed_world("cpu") as world:
        assert world.gather("here") == ["here"]
