"""A world of one rank."""

import os

import pytest
import torch
import torch.distributed as dist

from megabert.distributed import process_group
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


@pytest.mark.parametrize("devices", [("cuda", "cpu"), ("cpu", "cuda")])
def test_deepspeed_takes_the_device_of_each_run_anew(monkeypatch, devices):
    """Nothing is put on the device: this machine may have no GPU, so the groups are gloo's."""
    monkeypatch.setenv("DS_ACCELERATOR", "xpu")
    init = dist.init_process_group
    monkeypatch.setattr(dist, "init_process_group", lambda _, device_id, **words: init("gloo", **words))
    for name in devices:
        monkeypatch.setattr(process_group, "_device", lambda *_, device=torch.device(name, 0): device)
        with distributed_world():
            from deepspeed.accelerator import get_accelerator

            assert get_accelerator().device_name() == name
    assert os.environ["DS_ACCELERATOR"] == "xpu"


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
