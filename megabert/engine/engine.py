"""The engine: one interface for every ZeRO stage, with the same arithmetic; `build_engine` makes one.

One optimizer step of the trainer, in the order of the calls. Hooks are marked with an asterisk: autograd and torch call
them, nobody in this code does.

    Engine.forward(micro_batch)               for each micro-batch
        ZeroStage.before_forward              wait for the weights outside of the layers
        the model
          * WeightGathering._wait_for         stages 1 and 2: each layer waits for its own weights
        ZeroStage.after_forward
    Engine.backward(loss, is_last=...)        for each micro-batch
        ZeroStage.backward
          * GradientReduction._add_product    stages 1 and 2: a dense layer adds its weight's gradient to the sum
          * GradientReduction._take           stages 1 and 2: any other gradient is added
                GradientReduction._send           and a bucket that is complete is sent (stage 1: is_last only)
          * DeepSpeedEngine._backward_prologue    stage 3: DeepSpeed's own reduction begins
    Engine.wait_for_backward                  once; with several GPUs the host waits for its own
    Engine.step(settings, sums)               once
        ZeroStage.sum_of_squares              wait for the reduction, or make it
        World.sum_over_ranks                  losses and the squared norm: one small collective
        ZeroStage.start_update
            BaseOptimizer.step                stages 0 to 2; LAMB and StableAdamW sum over ranks between their passes,
                                              Muon sends pieces of matrices (World.exchange) there and back
                WeightGathering.updated       stages 1 and 2: a bucket's new weights begin to travel
        HostCopy.wait                         the host learns whether everything is finite
        ZeroStage.finish_update               if so; otherwise ZeroStage.gradients and ZeroStage.discard
            BaseOptimizer.step                stage 3

DeepSpeed's documented loop is ``loss = engine(batch); engine.backward(loss); engine.step()``, once per micro-step, and
DeepSpeed counts to ``gradient_accumulation_steps`` before it updates. Four things about it do not fit:

- The number of micro-steps must be constant. Ours are packed by tokens, so their number varies from batch to batch.
  DeepSpeed is told 1, with ``managed_gradient_accumulation: false``, which makes every ``step`` an update and lets
  ``backward`` accumulate as often as it is called. Float32 accumulation and reduction make 256 micro-steps equal one.
- Nobody looks at the gradients before the optimizer. Stages without a loss scaler would write a NaN into the weights,
  so `Engine.step` takes the norm first.
- ``engine(batch)`` attaches its hooks to the output's tensors and cannot look inside a dataclass. `Engine.forward`
  calls the model itself, and ``backward`` attaches the one hook that is needed to the loss. At stage 3, the hooks of
  every module inside are needed: they are shown dicts (`deepspeed_parts.Fields`).
- Stages 1 and 2 send more than they have to, and nothing of it during the backward pass. There DeepSpeed's ``backward``
  and ``step`` are not called at all (`zero_stages`).

The model inside, and with it all of ``megabert.models``, is single-device code that knows nothing of this.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from megabert.distributed.process_group import World
from megabert.engine.buckets import check_coverage, split_groups
from megabert.engine.deepspeed_parts import LossScale, Zero3, take_over_buckets, whole_shapes, wrap
from megabert.engine.gradient_reduction import MicroStepReduction, StepReduction
from megabert.engine.weight_average import WeightAverage
from megabert.engine.zero_stages import PartitionedStage, Zero0, ZeroStage
from megabert.foundation.errors import ConfigError
from megabert.ops import fp8
from megabert.ops.matmul_precision import set_matmul_precision
from megabert.ops.sums_of_squares import sums_of_squares
from megabert.optim import BaseOptimizer, Fragment, StepSettings
from megabert.settings.config.deepspeed import DEFAULT_BUCKET_SIZE, REQUIRED, unsupported, zero_stage_of
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.names import value_at
from megabert.settings.config.run import Precision


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """The outcome of `Engine.step`, alike on every rank but for the names."""

    totals: Tensor
    """The ``sums`` that ``step`` was given, summed over ranks: float64, on the CPU."""
    grad_norm: float | None
    """Norm of the global gradient before clipping; None if the update was skipped."""
    nonfinite: tuple[str, ...] = ()
    """If it was skipped: parameters whose gradients held inf or NaN on this rank. All ranks may have none, if a loss
    was not finite, or if finite gradients overflowed in their sum."""


class HostCopy:
    """A small tensor on its way to the host, which waits for all work launched before it and for none after it."""

    def __init__(self, tensor: Tensor) -> None:
        """Start the copy, into page-locked memory."""
        self._copy = tensor.to("cpu", non_blocking=True)
        self._event = torch.cuda.Event() if tensor.is_cuda else None
        if self._event is not None:
            self._event.record()

    def wait(self) -> Tensor:
        """Return the copy as soon as it is there."""
        if self._event is not None:
            self._event.synchronize()  # the host waits for the copy, not for work launched after it
        return self._copy


class Engine:
    """A model, its optimizer and DeepSpeed around them. One optimizer step looks like this:

        for micro_batch in batch:
            engine.backward(loss_of(engine.forward(micro_batch)), is_last=...)
        result = engine.step(settings, sums)

    Every rank must run the same number of micro-steps, since stages 2 and 3 reduce in each of them. A rank that has no
    data left runs an empty one, whose loss is zero but depends on every parameter.
    """

    def __init__(self, wrapper: Any, optimizer: BaseOptimizer, world: World, *, ds_config: Mapping[str, Any]) -> None:
        """Bind a ``DeepSpeedEngine`` around a model and an optimizer."""
        self.module: torch.nn.Module = wrapper.module
        """The model. Its weights may be on their way (``settle``), and under ZeRO-3 be whole only while it runs."""
        self.zero_stage = zero_stage_of(ds_config)
        """ZeRO stage, 0 to 3."""
        self.scale = LossScale(wrapper)
        self._world = world
        self._max_grad_norm = float(ds_config["gradient_clipping"])
        self.optimizer = optimizer
        self.shapes = whole_shapes(self.module)
        """Whole shape of every parameter by name. A tied weight is listed once, and all ranks have the same order."""
        self._stage = self._stage_around(wrapper, ds_config)
        self.fragments: list[Fragment] = self._stage.fragments
        """Which elements of the float32 masters this rank holds; LAMB and checkpoints share this table."""
        self.is_replicated = self._stage.is_replicated
        """Whether every rank holds every parameter whole (stage 0)."""
        check_coverage(self.fragments, self.shapes, None if self.is_replicated else world.control)
        # At stage 0 every rank computes with whole parameters, so LAMB has nothing to reduce, and Muon nothing to send.
        ranks = None if self.is_replicated else world
        optimizer.attach(self.fragments, self.shapes, ranks, self._stage.sink)
        self.average: WeightAverage | None = None
        """Moving average of the masters, if one is kept; checkpoints store it with them."""

    def _stage_around(self, wrapper: Any, ds_config: Mapping[str, Any]) -> ZeroStage:
        if self.zero_stage == 3:
            return Zero3(wrapper, self.optimizer, self.scale)
        if self.zero_stage == 0:
            return Zero0(self.module, self.optimizer, self.scale)
        # Whether gradients are sent during the backward pass; at stage 3 DeepSpeed knows.
        overlaps = value_at(ds_config, "zero_optimization.overlap_comm") is not False
        buckets = take_over_buckets(wrapper)
        reduction = (StepReduction if self.zero_stage == 1 else MicroStepReduction)(buckets, overlaps=overlaps)
        return PartitionedStage(self.module, self.optimizer, self.scale, buckets, reduction)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the model on one micro-batch."""
        self._stage.before_forward()
        output = self.module(*inputs, **options)
        self._stage.after_forward()
        return output

    def backward(self, loss: Tensor, *, is_last: bool = False) -> None:
        """Accumulate the gradients of ``loss``, which fp16 scales.

        Args:
            loss: A scalar, ``world_size * (sum_mlm / N_masked + sum_nsp / N_instances)``: this micro-step's sums, the
                whole batch's counts. The sum of all ranks' gradients is divided by the number of ranks.
            is_last: Whether ``step`` comes next, so that stage 1 may send gradients while others are computed. Without
                it they are sent in ``step``. Stages 2 and 3 send in each backward pass.
        """
        if loss.grad_fn is None:
            raise ValueError(
                "backward() needs a loss that depends on the model; an empty micro-batch gives 0 * outputs."
            )
        self._stage.backward(loss, is_last=is_last)

    def wait_for_backward(self) -> None:
        """Wait until this rank has computed its part, so that from then on it waits for the other ranks only.

        The host has nothing else to do: the last gradients are still on their way. A rank that is alone does not wait.
        """
        if self._world.device.type == "cuda" and self._world.size > 1:
            torch.cuda.current_stream(self._world.device).synchronize()  # NCCL has streams of its own

    @torch.no_grad()
    def step(self, settings: StepSettings, sums: Tensor | None = None) -> UpdateResult:
        """Reduce, clip and update, or skip the update on all ranks if anything is not finite.

        The host waits for the device once, for one small vector: whether the trainer's step count advances, and so the
        learning rate of the next update, depends on it. At stages 0 to 2 the update has been launched before, with
        a clip factor that stays on the device and is 0 if anything is not finite. So the device does not wait.

        Args:
            settings: Learning rate and bias step. The gradient scale is the engine's to set.
            sums: A float64 vector on the device that is also summed over ranks. Losses, for instance.

        Raises:
            LossScaleFloor: An overflow in fp16, and the loss scale cannot be lowered any further.
        """
        # One vector: the caller's sums, and the square of the gradient's norm.
        squares = self._stage.sum_of_squares().view(1)
        on_device = self._world.sum_over_ranks(squares if sums is None else torch.cat([sums, squares]))
        copy = HostCopy(on_device)
        # The clip factor stays on the device, and so the update can be launched before the host knows the totals.
        multiple = self._stage.gradient_multiple
        scale = self._gradient_scale(on_device, multiple)
        self._stage.start_update(dataclasses.replace(settings, gradient_scale=scale))
        # The update is under way; only now the host waits.
        totals = copy.wait()
        *_, squared_norm = numbers = totals.tolist()  # on the host already: no second wait
        if not all(map(math.isfinite, numbers)):
            names = tuple(self.nonfinite_gradients())
            self.discard_gradients()
            return UpdateResult(totals=totals[:-1], grad_norm=None, nonfinite=names)
        self._stage.finish_update(settings)
        norm = None if self.scale.has_overflowed else math.sqrt(squared_norm) / multiple
        return UpdateResult(totals=totals[:-1], grad_norm=norm)

    def _gradient_scale(self, totals: Tensor, multiple: float) -> Tensor:
        """Return the factor on the gradients, a float64 scalar on the device: 0 if a total is not finite.

        The last total is the sum of squares of ``multiple`` times the gradient of the global batch. Stage 3 clips by
        itself, with the same arithmetic, 1e-6 included.
        """
        excess = torch.ones_like(totals[-1])
        if self._max_grad_norm:
            excess = ((totals[-1].sqrt() / multiple + 1e-6) / self._max_grad_norm).clamp(min=1.0)
        # masked_fill: torch.where would copy the number from the host.
        return (1.0 / (multiple * excess)).masked_fill(~totals.isfinite().all(), 0.0)

    def nonfinite_gradients(self) -> list[str]:
        """Return the names of parameters whose gradients hold inf or NaN on this rank, before anything is updated.

        At stages 0 and 1 these are the rank's own gradients, so that the rank that made a NaN is known. Stages 2 and 3
        have reduced them in each micro-step: there the ranks that hold the affected elements name them.
        """
        named = list(self._stage.gradients())
        # The results stay on the device until all are there: asking tensor by tensor would wait for the GPU each time.
        sums = sums_of_squares([gradient.reshape(-1) for _, gradient in named], self._world.device).tolist()
        return [name for (name, _), squares in zip(named, sums, strict=True) if not math.isfinite(squares)]

    def discard_gradients(self) -> None:
        """Drop the accumulated gradients; every rank calls it. In fp16 this also lowers the loss scale."""
        self._stage.discard()
        self.scale.update(has_overflowed=True)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch to evaluation mode, without gradients. Every rank must call ``forward`` equally often inside."""
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.module.train()

    def settle(self) -> None:
        """Wait for all weights of the last update; ``forward`` waits for the weights of one bucket after the other."""
        self._stage.settle()

    def refresh(self) -> None:
        """Copy the float32 masters into the model's weights, after somebody else has changed the masters."""
        self._stage.refresh()

    def state(self) -> dict[str, Any]:
        """Return the state of the loss scaler, which a checkpoint stores in addition to the tensors."""
        return self.scale.state()

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self.scale.load_state(state)


DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.bfloat16}
"""Dtype of the weights in each precision."""


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Return what ``auto`` means on a device: bf16 on a GPU that has it, else fp16 on a GPU, fp32 on a CPU."""
    if precision != "auto":
        return precision
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"


def refuse_precision(precision: Precision, device: torch.device, model: ModelConfig | None = None) -> None:
    """Refuse a precision that a device does not have.

    Args:
        precision: The precision; ``auto`` fits every device.
        device: The device, which is asked for products in 8 bits.
        model: The model of such products.

    Raises:
        ConfigError: It is fp16, and there is no GPU, or fp8 on a GPU that does not multiply in 8 bits.
    """
    if precision == "fp16" and device.type == "cpu":
        raise ConfigError("precision=fp16 needs a GPU; on a CPU take fp32, or bf16.")
    if precision == "fp8" and model is not None:
        models = [model] if model.generator_size is None else [model, model.generator()]
        reason = fp8.obstacle(device, [width for one in models for width in (one.hidden_size, one.intermediate_size)])
        if reason:
            raise ConfigError(f"precision=fp8 cannot run on {device}: {reason}. Take bf16.")


def build_engine(model: torch.nn.Module, optimizer: BaseOptimizer, ds_config: dict[str, Any], world: World) -> Engine:
    """Wrap a model and its optimizer in DeepSpeed.

    Args:
        model: A float32 model with the same weights on every rank.
        optimizer: An optimizer over ``model.named_parameters()``. The fragment table is attached to it.
        ds_config: The complete dictionary, as ``config.deepspeed.derive_deepspeed`` makes it: no ``"auto"``, every key
            of ``config.deepspeed.REQUIRED``, ``gradient_clipping`` (0 does not clip), and at most one of
            ``bf16.enabled`` and ``fp16.enabled``.
        world: This rank and the others.

    Raises:
        ConfigError: A required key is missing or says something else, or the combination is not supported.
    """
    _require_fit(ds_config)
    set_matmul_precision()
    stage, sixteen_bits = zero_stage_of(ds_config), _precision_of(ds_config) != "fp32"
    # In 16 bits DeepSpeed converts the model in place, so the float32 weights are copied first.
    initial = {name: p.detach().float().cpu().clone() for name, p in model.named_parameters()} if sixteen_bits else {}
    # DeepSpeed's throughput timer would synchronise the GPU in every micro-step.
    complete = {**ds_config, "timers": {"throughput": {"enabled": False}}}
    if stage in (1, 2):
        # Overlap is ours, and DeepSpeed would refuse it at stage 1; and a bucket of ours is a parameter group of its.
        complete["zero_optimization"] = {**ds_config["zero_optimization"], "overlap_comm": False}
        size = value_at(ds_config, "zero_optimization.reduce_bucket_size") or DEFAULT_BUCKET_SIZE
        optimizer.param_groups[:] = split_groups(optimizer.param_groups, model, size)
    engine = Engine(wrap(model, optimizer, complete, stage=stage), optimizer, world, ds_config=ds_config)
    for fragment in engine.fragments if sixteen_bits else []:
        # DeepSpeed rounds the weights to 16 bits and copies the masters from those. Give them back the digits.
        values = initial[fragment.parameter].view(-1)[fragment.start : fragment.start + fragment.numel]
        fragment.view().copy_(values)
    engine.module.train()
    return engine


def _require_fit(ds_config: dict[str, Any]) -> None:
    """Refuse a configuration that lacks a required key, or combines what cannot be combined, naming every problem."""
    problems = [
        f"{key}={value_at(ds_config, key)!r} must be {value!r}"
        for key, value in REQUIRED.items()
        if value_at(ds_config, key) != value
    ]
    if "gradient_clipping" not in ds_config:
        problems.append("gradient_clipping is missing: DeepSpeed would clip at 1.0 unasked")
    problems += unsupported(ds_config, _precision_of(ds_config))
    if problems:
        raise ConfigError("The DeepSpeed configuration does not fit:\n" + "\n".join(f"  {line}" for line in problems))


def _precision_of(ds_config: dict[str, Any]) -> str:
    return next((name for name in ("bf16", "fp16") if value_at(ds_config, f"{name}.enabled")), "fp32")
