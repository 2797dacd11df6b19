"""A world of one rank."""

import os

import pytest

from megabert.distributed.process_group import PRODUCT_CACHES, PRODUCTS_KEPT, _device, distributed_world
from megabert.foundation.errors import ConfigError


def test_start_tries_no_compiler_for_deepspeeds_ops(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    import deepspeed.ops

    def try_compilers():
        pytest.fail("DeepSpeed looked for compilers")

    monkeypatch.delattr(deepspeed.ops, "__compatible_ops__", raising=False)
    monkeypatch.setattr(deepspeed.ops, "_probe_compatible_ops", try_compilers)
    with distributed_world("cpu") as world:
        assert world.gather("here") == ["here"]


def test_few_products_are_kept_on_a_cpu_unless_more_are_asked_for(monkeypatch):
    asked, other = PRODUCT_CACHES
    monkeypatch.setenv(asked, "500")
    monkeypatch.delenv(other, raising=False)
    with distributed_world("cpu"):
        assert os.environ[asked] == "500"
        assert os.environ[other] == PRODUCTS_KEPT


def test_rank_that_is_shown_one_gpu_of_its_node_learns_the_options_of_slurm(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"this process sees 1\. .*without --gpus-per-task or --gpu-bind"):
        _device("auto", local_rank=3)
