"""All that the engine knows of DeepSpeed by name, which is pinned (0.19.8): the next version is a look at this file.

What DeepSpeed does at each stage:

    stage  once, when it is initialized                         in each step
    0      nothing                                              nothing
    1, 2   flat weights, this rank's float32 masters of them    fp16's loss scaler; the rest is `zero_stages`
    3      the same, of each parameter; hooks on every module   everything: fetches, reduces, clips, updates, gathers

DeepSpeed's documented access to a gradient (``safe_get_full_grad``) gathers one whole parameter from all ranks. The
norm needs every gradient in every step, so it is taken directly from DeepSpeed's buffers. They are private; the tests
in ``tests/several_ranks`` compare every stage with plain torch. Four more names are in `distributed.process_group`,
which starts DeepSpeed's communication.
"""

import contextlib
import dataclasses
import functools
import gc
import io
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megabert.distributed.process_group import without_compiler
from megabert.engine.buckets import Bucket, checked
from megabert.engine.zero_stages import ZeroStage
from megabert.foundation.errors import ConfigError
from megabert.optim import BaseOptimizer, Fragment, StepSettings

_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def wrap(model: nn.Module, optimizer: BaseOptimizer, config: dict[str, Any], *, stage: int) -> Any:
    """Return a ``DeepSpeedEngine`` around a model and its optimizer; stdout, which is for results, stays empty."""
    import deepspeed  # takes seconds, and only training needs it

    # Hooks run in the order in which they were registered: ours have to be on either side of DeepSpeed's.
    modules = list(model.modules()) if stage == 3 else []
    for module in modules:
        module.register_forward_hook(to_fields)
    if sys.version_info < (3, 12):
        # The finalizer of an earlier engine imports, and must not run inside another import (python/cpython#91351).
        gc.collect()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), _no_idle_work(), without_compiler():
        wrapper, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for line in printed.getvalue().splitlines():
        deepspeed.utils.logger.info(line)
    for module in modules:
        module.register_forward_hook(from_fields)
    return wrapper


@contextlib.contextmanager
def _no_idle_work() -> Iterator[None]:
    """Keep DeepSpeed from work whose result nobody takes.

    BF16_Optimizer collects garbage twice for each parameter group, only to print its memory use: half a second each in
    a large process, and a bucket is a group. On GPUs alone, passes for torch's compiler are registered, for which the
    compiler is loaded: seconds of every start.
    """
    from deepspeed.runtime import bf16_optimizer, engine

    with (
        patch.object(bf16_optimizer, "see_memory_usage", lambda *_, **__: None),
        patch.object(engine, "is_deepcompile_supported", lambda: False),
    ):
        yield


def whole_shapes(module: nn.Module) -> dict[str, torch.Size]:
    """Return the whole shape of every parameter that is trained; stage 3 has left none of the elements in place."""
    named = ((name, p) for name, p in module.named_parameters() if p.requires_grad)
    return {name: torch.Size(getattr(p, "ds_shape", p.shape)) for name, p in named}


class LossScaleFloor(ConfigError):
    """Gradients in fp16 overflow even at the smallest loss scale."""

    def __init__(self, scale: float) -> None:
        self.reason = f"precision=fp16: gradients overflow even at the smallest loss scale, {scale:g},"
        super().__init__(f"{self.reason} so the model has diverged. Lower the learning rate, or train in bf16 or fp32.")


class LossScale:
    """The factor on the loss, which keeps small gradients above what fp16 can represent; 1 in other precisions."""

    def __init__(self, wrapper: Any) -> None:
        """Bind the optimizer of a ``DeepSpeedEngine``, which wraps ours."""
        self._optimizer = wrapper.optimizer
        self.is_dynamic = bool(getattr(self._optimizer, "dynamic_loss_scale", False))
        """Whether an overflow is an ordinary event that lowers the scale."""

    @property
    def value(self) -> float:
        """The factor of the present micro-steps."""
        return float(getattr(self._optimizer, "loss_scale", 1.0))

    @property
    def has_overflowed(self) -> bool:
        """Whether DeepSpeed skipped its last update."""
        return bool(getattr(self._optimizer, "overflow", False))

    def update(self, *, has_overflowed: bool) -> None:
        """Lower the scale after an overflow, or let it grow when that is due.

        Raises:
            LossScaleFloor: It cannot be lowered any further.
        """
        if self.is_dynamic:
            with self.naming_the_floor():
                self._optimizer.loss_scaler.update_scale(has_overflowed)

    @contextlib.contextmanager
    def naming_the_floor(self) -> Iterator[None]:
        """Raise `LossScaleFloor` in place of the error of DeepSpeed's loss scaler."""
        try:
            yield
        except Exception as error:  # DeepSpeed raises a bare Exception
            if "loss scale already at minimum" not in str(error):
                raise
            raise LossScaleFloor(self.value) from error

    def state(self) -> dict[str, Any]:
        """Return the state of the loss scaler as a checkpoint stores it; empty in other precisions than fp16."""
        if not self.is_dynamic:
            return {}
        return {"loss_scaler": {name: getattr(self._optimizer.loss_scaler, name) for name in _SCALER_STATE}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what ``state`` returned; a run that continues in another precision ignores it."""
        for name, value in state.get("loss_scaler", {}).items() if self.is_dynamic else ():
            setattr(self._optimizer.loss_scaler, name, value)


def take_over_buckets(wrapper: Any) -> list[Bucket]:
    """Return a bucket for each group of stage 1 or 2; DeepSpeed no longer touches their gradients and weights."""
    optimizer = wrapper.optimizer
    # DeepSpeed's hooks would reduce gradients, or copy them into buffers that nobody reads.
    for hook in optimizer._grad_acc_hooks:
        hook.remove()
    if hasattr(optimizer, "bf16_groups"):  # BF16_Optimizer, which DeepSpeed takes at stage 1 in bfloat16
        groups = (optimizer.bf16_groups, optimizer.bf16_groups_flat, optimizer.fp32_groups_flat_partition)
        buffers = optimizer.fp32_groups_gradients_flat
    else:
        groups = (optimizer.bit16_groups, optimizer.bit16_groups_flat, optimizer.single_partition_of_fp32_groups)
        buffers = [None] * len(optimizer.bit16_groups)
    names = {parameter: name for name, parameter in wrapper.module.named_parameters()}
    return [
        Bucket({names[p]: p for p in parameters}, weights, master, whole_gradient, rank=dist.get_rank())
        for parameters, weights, master, whole_gradient in zip(*groups, buffers, strict=True)
    ]


class Zero3(ZeroStage):
    """Stage 3: each ``backward`` reduces, and a rank accumulates its part of every parameter in one buffer."""

    def __init__(self, wrapper: Any, optimizer: BaseOptimizer, scale: LossScale) -> None:
        """Make the fragment table, from a ``DeepSpeedEngine`` and the optimizer that it wraps."""
        super().__init__(wrapper.module, optimizer, scale)
        self._wrapper, self._wrapped = wrapper, wrapper.optimizer
        self.fragments = list(self._parts())

    @property
    def gradient_multiple(self) -> float:
        """DeepSpeed has averaged over the ranks; fp16 has scaled the loss."""
        return self.scale.value

    def before_forward(self) -> None:
        """Do the rest of DeepSpeedEngine.forward; activation checkpointing may run backward hooks twice."""
        self._wrapped.clear_backward_seen_flag()

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Reduce the gradients of a micro-step to their owners, who accumulate them."""
        # The hooks of DeepSpeedEngine.forward would have called this when the backward pass begins. The loss's own hook
        # runs first, before the gradient of anything inside the model.
        loss.register_hook(lambda gradient: self._wrapper._backward_prologue())
        self._wrapper.backward(loss, scale_wrt_gas=False)  # divided by the whole batch's counts already

    def sum_of_squares(self) -> Tensor:
        """Return the sum of squares of this rank's part of the gradient, which backward has reduced."""
        return self._squares([gradient.view(-1) for _, gradient in self.gradients()])

    def start_update(self, settings: StepSettings) -> None:
        """Do nothing: DeepSpeed clips and updates at once, so the host has to know first that all is finite."""

    def finish_update(self, settings: StepSettings) -> None:
        """Clip, with a norm that DeepSpeed computes itself, and update."""
        # DeepSpeed calls ``step()`` without arguments, once per sub-group.
        step = functools.partial(self.optimizer.step, settings)
        with self.scale.naming_the_floor(), patch.object(self.optimizer, "step", step):
            self._wrapper.step()

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield this rank's part of each reduced gradient; its padding is zero."""
        position = 0
        for group in self._wrapped.fp16_groups:  # called so in every precision
            for parameter in group:
                numel = parameter.partition_numel()
                yield self.names[id(parameter)], self._wrapped.grad_partitions_flat_buffer.narrow(0, position, numel)
                position += numel

    def discard(self) -> None:
        """Drop the accumulated gradients: the same calls that DeepSpeed makes after an fp16 overflow."""
        self._wrapper._unmanaged_backward_count = 0  # micro-steps since the last update
        self._wrapped._pre_step()
        self._wrapped._partition_all_parameters()
        self._wrapped.zero_grad(set_to_none=True)
        self._wrapped.averaged_gradients = {}
        self._wrapped.grad_partitions_flat_buffer.zero_()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy masters into this rank's parts of the weights, and gather the small parameters that all ranks keep."""
        optimizer = self._wrapped
        optimizer._partition_all_parameters()
        for sub_group in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(sub_group)
        # Below stage3_param_persistence_threshold elements, fetching a parameter would cost more than keeping it.
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)

    def _parts(self) -> Iterator[Fragment]:
        """Yield this rank's parts.

        Every parameter is cut into one part per rank, all of one size, and a rank's parts of a sub-group are one flat
        buffer. The last part is padded, with uninitialised memory: padding is never part of a fragment.
        """
        groups = zip(
            self._wrapped.fp16_groups,
            self._wrapped.fp16_partitioned_groups_flat,
            self._wrapped.fp32_partitioned_groups_flat,
            self._wrapped.sub_group_process_groups,
            strict=True,
        )
        for parameters, model_flat, master, process_group in groups:
            rank = dist.get_rank(group=process_group)
            for parameter in parameters:
                partition = parameter.ds_tensor
                # The partition's ds_numel counts its padding, the parameter's does not.
                start = rank * partition.ds_numel
                numel = max(0, min(partition.ds_numel, parameter.ds_numel - start))
                if numel:
                    offset = (partition.data_ptr() - model_flat.data_ptr()) // partition.element_size()
                    fragment = Fragment(master, offset, self.names[id(parameter)], start, numel)
                    yield checked(fragment, partition.detach().view(-1)[:numel])


class Fields(dict[str, Any]):
    """The fields of a dataclass instance by name, so that ZeRO-3 sees the tensors in them.

    Under ZeRO-3 a rank holds only its part of a module's weights. DeepSpeed fetches the other parts before the module's
    backward pass, and knows when that begins by wrapping the tensors of the module's output in an autograd function. It
    looks for tensors in tuples, lists and dicts, and replaces them in place. In any other object it finds none: then
    nothing is fetched, and the backward pass meets a weight without elements. Our models return dataclasses, so that an
    output has names and types.
    """

    kind: type
    """The dataclass."""


def to_fields(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
    """Replace a dataclass by its fields: a forward hook to run before DeepSpeed's."""
    if not dataclasses.is_dataclass(output):
        return None  # to torch: leave the output as it is
    fields = Fields({field.name: getattr(output, field.name) for field in dataclasses.fields(output)})
    fields.kind = type(output)
    return fields


def from_fields(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
    """Make the dataclass again: a forward hook to run after DeepSpeed's."""
    return output.kind(**output) if isinstance(output, Fields) else None
