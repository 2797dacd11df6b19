"""A world of one rank."""

import os
import threading

import pytest
import torch
import torch.distributed as dist

from megabert.distributed import process_group
from megabert.distributed.process_group import PRODUCT_CACHES, PRODUCTS_KEPT, _device, distributed_world
from megabert.foundation.errors import ConfigError
from megabert.ops.matmul_precision import set_matmul_precision


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
        monkeypatch.setattr(process_group, "_device", lambda *_, name=name: torch.device(name, 0))
        with distributed_world():
            from deepspeed.accelerator import get_accelerator

            assert get_accelerator().device_name() == name
    assert os.environ["DS_ACCELERATOR"] == "xpu"


def settings():
    matmul, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    sums = matmul.allow_bf16_reduced_precision_reduction, matmul.allow_fp16_reduced_precision_reduction
    return matmul.fp32_precision, cpu.fp32_precision, sums, torch.get_num_threads(), threading.excepthook


@pytest.mark.parametrize(
    "prepare",
    [
        lambda: None,
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    ],
)
def test_caller_has_its_settings_of_torch_and_threads_back(prepare):
    first = settings()
    try:
        prepare()
        before = settings()
        with distributed_world("cpu"):
            torch.set_num_threads(torch.get_num_threads() + 1)
            set_matmul_precision()
            threading.excepthook = print
        assert settings() == before
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = first[:2]
        torch.set_num_threads(first[-2])
        threading.excepthook = first[-1]


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
