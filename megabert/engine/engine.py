"""The engine: every ZeRO stage behind one interface, with the same arithmetic.

DeepSpeed's documented loop is ``loss = engine(batch); engine.backward(loss); engine.step()``, once per micro-step, and
DeepSpeed counts to ``gradient_accumulation_steps`` before it updates. Four things about it do not fit:

- The number of micro-steps must be constant. Ours are packed by tokens, so a global batch takes as many as it takes.
  DeepSpeed is told 1, with ``managed_gradient_accumulation: false``, which makes every ``step`` an update and lets
  ``backward`` accumulate as often as it is called. Float32 accumulation and reduction make 256 micro-steps equal one.
- Nobody looks at the gradients before the optimizer. Stages without a loss scaler would write a NaN into the weights,
  so `Engine.step` takes the norm first.
- ``engine(batch)`` hangs its hooks on the tensors of the output and does not see into a dataclass. `Engine.forward`
  calls the model itself, and ``backward`` hangs the one hook that is needed on the loss. At stage 3, where the hooks of
  every module inside are needed, they are shown dicts (`zero3_outputs`).
- Stages 1 and 2 send more than they have to and hide none of it. There DeepSpeed's ``backward`` and ``step`` are not
  called at all (`zero_stages`).

The model inside, and with it all of ``megabert.models``, is single-device code that knows nothing of this.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from megabert.config.deepspeed import value_at
from megabert.distributed.process_group import World
from megabert.engine.buckets import Collectives
from megabert.engine.weight_average import WeightAverage
from megabert.engine.zero1_zero2 import Bf16, Zero1, Zero2
from megabert.engine.zero3 import Zero3
from megabert.engine.zero_stages import Unsharded, check_coverage
from megabert.errors import ConfigError
from megabert.ops.lamb.reference import sums_of_squares
from megabert.optim import BaseOptimizer, Fragment

_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class LossScaleFloor(ConfigError):
    """Gradients in fp16 overflow even at the smallest loss scale."""

    def __init__(self, scale: float) -> None:
        self.reason = f"precision=fp16: gradients overflow even at the smallest loss scale, {scale:g},"
        super().__init__(f"{self.reason} so the model has diverged. Lower the learning rate, or train in bf16 or fp32.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """What became of a step, alike on every rank but for the names."""

    totals: Tensor
    """What ``step`` was given, summed over ranks: float64, on the CPU."""
    grad_norm: float | None
    """Norm of the global gradient before clipping; None where the update was skipped."""
    nonfinite: tuple[str, ...] = ()
    """If it was skipped: parameters whose gradients held inf or NaN on this rank. All ranks may have none, where a loss
    was not finite, or finite gradients overflowed in their sum."""


class HostCopy:
    """A small tensor on its way to the host: behind what has been launched, and not behind what is launched later."""

    def __init__(self, tensor: Tensor) -> None:
        """Start the copy, into page-locked memory."""
        self._copy = tensor.to("cpu", non_blocking=True)
        self._event = torch.cuda.Event() if tensor.is_cuda else None
        if self._event is not None:
            self._event.record()

    def wait(self) -> Tensor:
        """Return the copy as soon as it is there."""
        if self._event is not None:
            self._event.synchronize()
        return self._copy


class Engine:
    """A model, its optimizer and DeepSpeed around them. One optimizer step looks like this:

        for micro_batch in batch:
            engine.backward(loss_of(engine.forward(micro_batch)), is_last=...)
        outcome = engine.step(sums)

    Every rank must run the same number of micro-steps, since stages 2 and 3 reduce in each of them. A rank that has no
    data left runs an empty one, whose loss is zero but depends on every parameter.
    """

    def __init__(
        self, deepspeed_engine: Any, optimizer: BaseOptimizer, world: World, *, ds_config: Mapping[str, Any]
    ) -> None:
        """Wrap what `build_engine` has initialized."""
        self._deepspeed = deepspeed_engine
        self._world = world
        self._max_grad_norm = float(ds_config["gradient_clipping"])
        self.optimizer = optimizer
        self.shapes = {
            name: torch.Size(getattr(parameter, "ds_shape", parameter.shape))
            for name, parameter in deepspeed_engine.module.named_parameters()
            if parameter.requires_grad
        }
        """Whole shape of every parameter by name. A tied weight is listed once, and the order is that of all ranks."""
        overlaps = value_at(ds_config, "zero_optimization.overlap_comm") is not False
        self._stage = _stage_of(deepspeed_engine, Collectives(), overlaps=overlaps)
        self.fragments: list[Fragment] = self._stage.fragments
        """Which elements of the float32 masters this rank holds; LAMB and checkpoints share this table."""
        check_coverage(self._stage, self.shapes, world.control)
        # At stage 0 every rank computes the norms of whole parameters, so LAMB has nothing to reduce.
        optimizer.attach(self.fragments, list(self.shapes), None if self.is_replicated else world.sum_over_ranks)
        self.average: WeightAverage | None = None
        """Moving average of the masters, where one is kept; checkpoints store it with them."""

    @property
    def module(self) -> torch.nn.Module:
        """The model. Its weights may be on their way (``settle``), and under ZeRO-3 be whole only while it runs."""
        return self._deepspeed.module

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds every parameter whole (stage 0)."""
        return self._stage.is_replicated

    @property
    def zero_stage(self) -> int:
        """ZeRO stage, 0 to 3."""
        return int(self._deepspeed.zero_optimization_stage())

    @property
    def loss_scale(self) -> float:
        """Factor on the loss, which keeps small gradients above what fp16 can represent; 1 in other precisions."""
        return float(getattr(self._deepspeed.optimizer, "loss_scale", 1.0))

    @property
    def has_dynamic_loss_scale(self) -> bool:
        """Whether an overflow is an ordinary event that lowers the loss scale, as it is in fp16."""
        return bool(getattr(self._deepspeed.optimizer, "dynamic_loss_scale", False))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the model on one micro-batch."""
        self._stage.before_forward()
        output = self._deepspeed.module(*inputs, **options)
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
        """Wait until this rank has computed its part, so that what follows is waiting for the other ranks.

        The host has nothing else to do: the last gradients are still on their way. A rank that is alone does not wait.
        """
        if self._world.device.type == "cuda" and self._world.size > 1:
            torch.cuda.current_stream(self._world.device).synchronize()

    @torch.no_grad()
    def step(self, sums: Tensor | None = None) -> UpdateResult:
        """Reduce, clip and update, or skip the update on all ranks where anything is not finite.

        The host waits for the device once, for one small vector: whether the trainer's step count advances, and so the
        learning rate of the next update, depends on it. At stages 0 to 2 the update has been launched before, with
        a clip factor that stays on the device and is 0 where anything is not finite. So the device does not wait.

        Args:
            sums: What else is to be summed over ranks: a float64 vector on the device. Losses, for instance.

        Raises:
            LossScaleFloor: An overflow in fp16, and the loss scale cannot be lowered any further.
        """
        squares = self._stage.sum_of_squares().view(1)
        vector = squares if sums is None else torch.cat([sums, squares])
        on_device = self._world.sum_over_ranks(vector)
        copy = HostCopy(on_device)
        multiple = self._stage.gradient_multiple
        # Stage 3 clips by itself, with the same arithmetic, 1e-6 included.
        self.optimizer.gradient_scale = self._gradient_scale(on_device, multiple) if self.zero_stage < 3 else 1.0
        self._stage.start_update()
        totals = copy.wait()
        *others, sum_of_squares = totals.tolist()
        if not all(map(math.isfinite, (*others, sum_of_squares))):
            names = tuple(self.nonfinite_gradients())
            self.discard_gradients()
            return UpdateResult(totals=totals[:-1], grad_norm=None, nonfinite=names)
        with self._naming_the_floor():
            self._stage.finish_update()
        was_skipped = bool(getattr(self._deepspeed.optimizer, "overflow", False))
        norm = None if was_skipped else math.sqrt(sum_of_squares) / multiple
        return UpdateResult(totals=totals[:-1], grad_norm=norm)

    def _gradient_scale(self, totals: Tensor, multiple: float) -> Tensor:
        """Return what gradients are multiplied by, a float64 scalar on the device: 0 where a total is not finite.

        Of the totals the last is the sum of squares of ``multiple`` times the gradient of the global batch.
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
        """Drop what was accumulated; every rank calls it. In fp16 this also lowers the loss scale."""
        self._stage.discard()
        if self.has_dynamic_loss_scale:
            with self._naming_the_floor():
                self._deepspeed.optimizer.loss_scaler.update_scale(True)

    @contextlib.contextmanager
    def _naming_the_floor(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # DeepSpeed raises a bare Exception
            if "loss scale already at minimum" not in str(error):
                raise
            raise LossScaleFloor(self.loss_scale) from error

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch to evaluation mode, without gradients. Every rank must call ``forward`` equally often inside."""
        self._deepspeed.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._deepspeed.module.train()

    def settle(self) -> None:
        """Wait until the model's weights are those of the last update; ``forward`` does so where it needs them."""
        self._stage.settle()

    def refresh(self) -> None:
        """Copy the float32 masters into the model's weights, after somebody else has changed the masters."""
        self._stage.refresh()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores besides the tensors: the state of the loss scaler."""
        if not self.has_dynamic_loss_scale:
            return {}
        scaler = self._deepspeed.optimizer.loss_scaler
        return {"loss_scaler": {name: getattr(scaler, name) for name in _SCALER_STATE}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what ``state`` returned; a run that continues in another precision ignores it."""
        if self.has_dynamic_loss_scale:
            for name, value in state.get("loss_scaler", {}).items():
                setattr(self._deepspeed.optimizer.loss_scaler, name, value)


def _stage_of(engine: Any, collectives: Collectives, *, overlaps: bool) -> Unsharded:
    """Return the stage of a ``DeepSpeedEngine``.

    Args:
        engine: The engine.
        collectives: How stages 1 and 2 send gradients and weights.
        overlaps: At stages 1 and 2, whether gradients are sent during the backward pass; at stage 3 DeepSpeed knows.
    """
    stage = int(engine.zero_optimization_stage())
    if stage in (0, 3):
        return Unsharded(engine) if stage == 0 else Zero3(engine)
    kind = Zero2 if stage == 2 else Bf16 if hasattr(engine.optimizer, "bf16_groups") else Zero1
    return kind(engine, collectives, overlaps=overlaps)
