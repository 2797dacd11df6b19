"""A device "cuda" that is not there, and the engine on it with the real model, optimizer and loss.

DeepSpeed's optimizer is a stand-in with its buffers (flat weights, float32 masters of a partition), and so are the
collectives. Run in a process that loaded guard.cpp.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from fake_cuda.watch import Watch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.runtime.jit import JITFunction

from megabert.engine import buckets, engine, gradient_reduction
from megabert.models import deberta
from megabert.models.matrices import layer_matrices
from megabert.ops.triton_support import tile_sizes
from megabert.optim import build_optimizer
from megabert.settings.config.run import OpsConfig, OptimizerConfig

CUDA = torch.device("cuda", 0)
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 1000}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "albert": {},
    "electra": {"generator_size": 0.5},
    "deberta": {},
    "deberta-v3": {"generator_size": 0.5, "generator_layers": 1},
    "modernbert": {},
}
"""The families that are trained here, with the settings that make each different from BERT."""
ALIKE = ("roberta", "electra", "deberta")
"""Families whose parameters and layers are those of BERT and of DeBERTa-v3: their steps are for ``make soak``."""
KEPT = tuple(family for family in FAMILIES if family not in ALIKE)
BATCH_TENSORS = 8
"""Tensors of a micro-batch, each copied to the device by itself."""


def ops_of(family: str) -> OpsConfig:
    """Return the kernels of a GPU, whatever the family."""
    return OpsConfig(**dict.fromkeys(("layer_norm", "attention", "bias_gelu", "cross_entropy", "lamb"), "triton"))


class DeepSpeedOptimizer:
    """Stands in for DeepSpeed's: each group of parameters is one flat tensor, of which a rank has one master."""

    def __init__(self, optimizer: Any, *, world_size: int, stage: int, dtype: torch.dtype) -> None:
        self.optimizer, self._grad_acc_hooks = optimizer, []
        self.bit16_groups, self.bit16_groups_flat = [], []
        self.single_partition_of_fp32_groups = []
        for group in optimizer.param_groups:
            parameters = list(group["params"])
            partition = -(-sum(parameter.numel() for parameter in parameters) // (2 * world_size)) * 2
            flat = torch.empty(partition * world_size, dtype=dtype, device=CUDA)
            starts = itertools.accumulate((parameter.numel() for parameter in parameters), initial=0)
            for parameter, start in zip(parameters, starts, strict=False):
                parameter.data = flat[start : start + parameter.numel()].view(parameter.shape)
            master = torch.empty(partition, device=CUDA, requires_grad=True)
            self.bit16_groups.append(parameters)
            self.bit16_groups_flat.append(flat)
            self.single_partition_of_fp32_groups.append(master)
            group["params"] = [master]
        if stage == 1 and dtype == torch.bfloat16:  # names of the optimizer that DeepSpeed takes there
            self.bf16_groups, self.bf16_groups_flat = self.bit16_groups, self.bit16_groups_flat
            self.fp32_groups_flat_partition = self.single_partition_of_fp32_groups
            self.fp32_groups_gradients_flat = [torch.zeros(flat.shape, device=CUDA) for flat in self.bf16_groups_flat]


def address(tensor: Tensor) -> int:
    """Return a number for a fake tensor's address, in which offsets within a storage are right."""
    return (tensor.untyped_storage()._cdata << 8) + tensor.storage_offset() * tensor.element_size()


@contextlib.contextmanager
def fake_gpu(
    watch: Watch, world_size: int, *, capability: tuple[int, int] = (9, 0), multiprocessors: int = 132
) -> Iterator[None]:
    """Put a GPU, by default an H100, in the place of what cannot run without one."""
    reduction = gradient_reduction.GradientReduction

    def noted(method: Callable) -> Callable:
        def call(self: Any, *arguments: Any) -> Any:
            watch.note_thread()
            return method(self, *arguments)

        return call

    def copied(copy: Any, tensor: Tensor) -> None:
        watch.seen.copies_to_host += 1
        copy.shape, copy.dtype = tensor.shape, tensor.dtype

    def waited(copy: Any) -> Tensor:
        watch.seen.launches_before_waits.append(watch.seen.kernels.total())
        return torch.ones(copy.shape, dtype=copy.dtype, device="cpu")

    reduce, gather = buckets.Bucket.reduce, buckets.Bucket.gather

    def called(collective: Callable, *given: Any) -> bool:
        if dist.is_initialized():  # a fake process group, which checks shapes
            collective(*given)
        return True

    def wait_for_stream() -> None:
        watch.seen.stream_waits += 1

    stream = SimpleNamespace(synchronize=wait_for_stream)
    patches = {
        # A launch is called with its kernel, and a collective with its bucket, like methods.
        (JITFunction, "run"): lambda kernel, *given, **rest: watch.launch(kernel, *given, **rest),
        (torch.cuda, "get_device_capability"): lambda device=None: capability,
        (torch.cuda, "get_device_properties"): lambda device=None: SimpleNamespace(
            multi_processor_count=multiprocessors
        ),
        (torch.cuda, "current_stream"): lambda device=None: stream,
        (Tensor, "data_ptr"): address,
        (Tensor, "pin_memory"): lambda tensor: watch.pin(tensor),
        (buckets, "checked"): lambda fragment, weights: fragment,
        (engine, "check_coverage"): lambda *_: None,
        (buckets.Bucket, "reduce"): lambda bucket, *given: called(reduce, bucket, *given) and watch.reduce(*given),
        (buckets.Bucket, "gather"): lambda bucket: called(gather, bucket) and watch.gather(bucket),
        (dist, "all_reduce"): lambda tensor: watch.all_reduce(tensor),
        (engine.HostCopy, "__init__"): copied,
        (engine.HostCopy, "wait"): waited,
        (dist, "get_rank"): lambda group=None: 0,
        (dist, "get_world_size"): lambda group=None: world_size,
        (reduction, "_take"): noted(reduction._take),
        (reduction, "_place_of"): noted(reduction._place_of),
    }
    with contextlib.ExitStack() as stack:
        for (owner, name), stand_in in patches.items():
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        deberta.positions_of.cache_clear()  # it may hold a tensor of another device that was not there
        tile_sizes.capability_of.cache_clear()
        tile_sizes.multiprocessors_of.cache_clear()
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def made_in(dtype: torch.dtype, make_model: Callable[[], nn.Module]) -> nn.Module:
    """Return a model on the device with weights of a dtype."""
    torch.set_default_dtype(dtype)
    try:
        with CUDA:
            return make_model()
    finally:
        torch.set_default_dtype(torch.float32)


def fake_engine(
    make_model: Callable[[], nn.Module],
    *,
    stage: int = 1,
    world_size: int = 1,
    optimizer: str = "lamb",
    dtype: torch.dtype = torch.bfloat16,
    bucket_size: int = 50_000,
) -> tuple[engine.Engine, SimpleNamespace]:
    """Return an engine of rank 0, and its world.

    Args:
        make_model: Makes the model.
        stage: ZeRO stage, 0 to 2.
        world_size: Number of ranks; there is none but this one.
        optimizer: ``lamb``, ``adamw``, ``stable_adamw`` or ``muon``.
        dtype: Dtype of the model's weights.
        bucket_size: Most parameters that are reduced at once.
    """
    model = made_in(dtype, make_model)
    config, matrices = OptimizerConfig(name=optimizer), layer_matrices(model)
    inner = build_optimizer(model.named_parameters(), config, lamb_backend="triton", matrices=matrices)
    outer: Any = inner
    if stage:
        inner.param_groups[:] = buckets.split_groups(inner.param_groups, model, bucket_size)
        outer = DeepSpeedOptimizer(inner, world_size=world_size, stage=stage, dtype=dtype)
    deepspeed = SimpleNamespace(module=model, optimizer=outer)
    world = SimpleNamespace(
        rank=0,
        size=world_size,
        device=CUDA,
        control=None,
        is_main=False,  # who writes logs and files
        sum_over_ranks=lambda vector: vector,
        gather=lambda value: [value] * world.size,
        exchange=lambda outgoing, sent, received: outgoing.new_empty(sum(received)),
    )
    settings = {"gradient_clipping": 1.0, "zero_optimization": {"overlap_comm": True, "stage": stage}}
    return engine.Engine(deepspeed, inner, world, ds_config=settings), world
