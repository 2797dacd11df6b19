"""The engine: DeepSpeed, driven so that every ZeRO stage does the same arithmetic.

DeepSpeed's documented loop is ``loss = engine(batch); engine.backward(loss); engine.step()``, once per micro-step, and
DeepSpeed counts to ``gradient_accumulation_steps`` before it updates. Three things about it do not fit:

- The number of micro-steps must be constant. Ours are packed by tokens, so a global batch takes as many as it takes.
  DeepSpeed is told 1, with ``managed_gradient_accumulation: false``, which makes every ``step`` an update and lets
  ``backward`` accumulate as often as it is called. Float32 accumulation and reduction make 256 micro-steps equal one.
- Nobody looks at the gradients before the optimizer. Stages without a loss scaler would write a NaN into the weights,
  so `Engine.nonfinite_gradients` looks at them first (`zero_stages` says where they are).
- ``engine(batch)`` hangs its hooks on the tensors of the output and does not see into a dataclass. `Engine.forward`
  calls the model itself, and `Engine.backward` hangs the one hook that is needed on the loss. At stage 3, where the
  hooks of every module inside are needed, they are shown dicts (`_Fields`).

The model inside, and with it all of ``megabert.models``, is single-device code that knows nothing of this.
"""

import contextlib
import dataclasses
import io
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megabert.config.deepspeed import REQUIRED, unsupported, value_at, zero_stage_of
from megabert.config.run import Precision
from megabert.distributed.process_group import World
from megabert.engine.weight_average import WeightAverage
from megabert.engine.zero_stages import check_coverage, stage_of
from megabert.errors import ConfigError
from megabert.ops.lamb.reference import sums_of_squares
from megabert.optim import BaseOptimizer, Fragment

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_ALLREDUCE_BUCKET = 500_000_000  # elements of one all-reduce, DeepSpeed's own default
_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


class LossScaleFloor(ConfigError):
    """Gradients in fp16 overflow even at the smallest loss scale."""

    def __init__(self, scale: float) -> None:
        self.reason = f"precision=fp16: gradients overflow even at the smallest loss scale, {scale:g},"
        super().__init__(f"{self.reason} so the model has diverged. Lower the learning rate, or train in bf16 or fp32.")


class Engine:
    """A model, its optimizer and DeepSpeed around them. One optimizer step looks like this:

        for micro_batch in batch:
            engine.backward(loss_of(engine.forward(micro_batch)))
        if any_rank_has(engine.nonfinite_gradients()):
            engine.discard_gradients()
        else:
            grad_norm = engine.step()

    Every rank must run the same number of micro-steps, since stages 2 and 3 reduce in each of them. A rank that has no
    data left runs an empty one, whose loss is zero but depends on every parameter.
    """

    def __init__(self, deepspeed_engine: Any, optimizer: BaseOptimizer, world: World, max_grad_norm: float) -> None:
        self._deepspeed = deepspeed_engine
        self._world = world
        self._max_grad_norm = max_grad_norm
        self.optimizer = optimizer
        self.shapes = {
            name: torch.Size(getattr(parameter, "ds_shape", parameter.shape))
            for name, parameter in deepspeed_engine.module.named_parameters()
            if parameter.requires_grad
        }
        """Whole shape of every parameter by name. A tied weight is listed once, and the order is that of all ranks."""
        self._stage = stage_of(deepspeed_engine)
        self.fragments: list[Fragment] = self._stage.fragments
        """Which elements of the float32 masters this rank holds; LAMB and checkpoints share this table."""
        check_coverage(self._stage, self.shapes, world.control)
        # At stage 0 every rank computes the norms of whole parameters, so LAMB has nothing to reduce.
        optimizer.attach(self.fragments, list(self.shapes), None if self.is_replicated else dist.all_reduce)
        self.average: WeightAverage | None = None
        """Moving average of the masters, where one is kept; checkpoints store it with them."""
        self.step_was_skipped = False
        """Whether the last ``step`` updated nothing, because gradients overflowed while they were reduced."""

    @property
    def module(self) -> torch.nn.Module:
        """The model. Under ZeRO-3 its parameters are whole only while ``forward`` and ``backward`` use them."""
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
        # The other thing that DeepSpeedEngine.forward does; activation checkpointing may run backward hooks twice.
        if not self.is_replicated:
            self._deepspeed.optimizer.clear_backward_seen_flag()
        return self._deepspeed.module(*inputs, **options)

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of ``loss``, which fp16 scales.

        Args:
            loss: A scalar. For means over the global batch it is
                ``world_size * (sum_mlm / N_masked + sum_nsp / N_instances)`` with this micro-step's sums and the whole
                batch's counts: DeepSpeed divides the sum of all ranks' gradients by the number of ranks.
        """
        if loss.grad_fn is None:
            raise ValueError(
                "backward() needs a loss that depends on the model; an empty micro-batch gives 0 * outputs."
            )
        # What the hooks of DeepSpeedEngine.forward would have done when the backward pass begins. The loss's own hook
        # runs first, before the gradient of anything inside the model.
        loss.register_hook(lambda gradient: self._deepspeed._backward_prologue())
        self._deepspeed.backward(loss, scale_wrt_gas=False)

    def nonfinite_gradients(self) -> list[str]:
        """Return the names of parameters whose gradients hold inf or NaN on this rank, before anything is updated.

        At stages 0 and 1 the gradients are still local, so that the rank that made a NaN is known. Stages 2 and 3 have
        reduced them in each micro-step: there the ranks that hold the affected elements name them.
        """
        # The results stay on the device until all are there: asking tensor by tensor would wait for the GPU each time.
        named = list(self._stage.gradients())
        if not named:
            return []
        finite = torch.isfinite(_peaks([gradient for _, gradient in named])).tolist()  # one synchronisation
        return [name for (name, _), is_finite in zip(named, finite, strict=True) if not is_finite]

    def step(self) -> float:
        """Reduce, clip and update. Call it only after ``nonfinite_gradients`` was empty on every rank.

        Returns:
            The norm of the global gradient before clipping; inf if the step was skipped (``step_was_skipped``), because
            finite gradients overflowed in their sum.

        Raises:
            LossScaleFloor: An overflow in fp16, and the loss scale cannot be lowered any further.
        """
        if self.is_replicated:
            return self._unsharded_step()
        with self._naming_the_floor():
            self._deepspeed.step()
        self.step_was_skipped = bool(self._deepspeed.optimizer.overflow)
        return math.inf if self.step_was_skipped else float(self._deepspeed.get_global_grad_norm())

    def discard_gradients(self) -> None:
        """Drop what was accumulated; every rank calls it. In fp16 this also lowers the loss scale."""
        self._stage.discard()
        self._deepspeed._unmanaged_backward_count = 0  # micro-steps since the last update
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
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.module.train()

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

    @torch.no_grad()
    def _unsharded_step(self) -> float:
        """Reduce, clip and update at stage 0, where DeepSpeed's own clipping would use a float32 norm.

        That norm is wrong by 1e-4 on a CPU, so the same data would give other losses than under ZeRO. Gradients are
        reduced and clipped here, with a float64 norm, and DeepSpeed is kept from reducing them a second time.
        """
        # 1. Average over ranks, in buckets.
        self._deepspeed.buffered_allreduce_fallback(elements_per_buffer=_ALLREDUCE_BUCKET)
        # 2. The norm: finite gradients may still have overflowed in their sum, on every rank alike.
        gradients = [gradient.view(-1) for _, gradient in self._stage.gradients()]
        norm = math.sqrt(sums_of_squares(gradients, self._world.device).sum().item())
        self.step_was_skipped = not math.isfinite(norm)
        if self.step_was_skipped:
            self.discard_gradients()
            return math.inf
        # 3. Clip, with the same arithmetic as ZeRO's, 1e-6 included.
        if self._max_grad_norm:
            torch._foreach_div_(gradients, max(1.0, (norm + 1e-6) / self._max_grad_norm))
        # 4. Update. With this flag off DeepSpeed does not reduce the gradients again.
        self._deepspeed.enable_backward_allreduce = False
        try:
            self._deepspeed.step()
        finally:
            self._deepspeed.enable_backward_allreduce = True
        return norm


def resolve_precision(precision: Precision, device: torch.device) -> Precision:
    """Return what ``auto`` means on a device: bf16 on a GPU that has it, else fp16 on a GPU, fp32 on a CPU."""
    if precision != "auto":
        return precision
    if device.type != "cuda":
        return "fp32"
    return "bf16" if torch.cuda.is_bf16_supported() else "fp16"


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
    _check(ds_config)
    import deepspeed  # takes seconds, and only training needs it

    stage, sixteen_bits = zero_stage_of(ds_config), _precision(ds_config) != "fp32"
    # In 16 bits DeepSpeed converts the model in place, so the float32 weights are copied first.
    initial = {name: p.detach().float().cpu().clone() for name, p in model.named_parameters()} if sixteen_bits else {}
    # DeepSpeed's throughput timer would synchronise the GPU in every micro-step.
    complete = {**ds_config, "timers": {"throughput": {"enabled": False}}}
    if stage == 0:
        complete["gradient_clipping"] = 0.0  # Engine clips
    # Hooks run in the order in which they were registered: ours have to be on either side of DeepSpeed's.
    modules = list(model.modules()) if stage == 3 else []
    for module in modules:
        module.register_forward_hook(_to_fields)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):  # DeepSpeed prints its memory use; stdout is for results
        deepspeed_engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=complete)
    for line in printed.getvalue().splitlines():
        deepspeed.utils.logger.info(line)
    for module in modules:
        module.register_forward_hook(_from_fields)
    engine = Engine(deepspeed_engine, optimizer, world, float(ds_config["gradient_clipping"]))
    for fragment in engine.fragments if sixteen_bits else []:
        # DeepSpeed rounds the weights to 16 bits and copies the masters from those. Give them back the digits.
        values = initial[fragment.parameter].view(-1)[fragment.start : fragment.start + fragment.numel]
        fragment.view().copy_(values)
    deepspeed_engine.module.train()
    return engine


class _Fields(dict[str, Any]):
    """The fields of a dataclass instance by name, so that ZeRO-3 sees the tensors in them.

    Under ZeRO-3 a rank holds only its part of a module's weights. DeepSpeed fetches the other parts before the module's
    backward pass, and knows when that begins by wrapping the tensors of the module's output in an autograd function. It
    looks for tensors in tuples, lists and dicts, and replaces them in place. In any other object it finds none: then
    nothing is fetched, and the backward pass meets a weight without elements. Our models return dataclasses, so that an
    output has names and types.
    """

    kind: type
    """The dataclass."""


def _to_fields(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
    if not dataclasses.is_dataclass(output):
        return None  # to torch: leave the output as it is
    fields = _Fields({field.name: getattr(output, field.name) for field in dataclasses.fields(output)})
    fields.kind = type(output)
    return fields


def _from_fields(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
    return output.kind(**output) if isinstance(output, _Fields) else None


def _peaks(gradients: list[Tensor]) -> Tensor:
    """Return for each tensor a number that is finite exactly if all of its elements are."""
    if gradients[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(gradients, math.inf))
    # The least and the greatest element: on a CPU the infinity norm takes 16 times as long.
    return torch.stack([torch.stack(gradient.aminmax()).double().abs().amax() for gradient in gradients])


def _check(ds_config: dict[str, Any]) -> None:
    problems = [
        f"{key}={value_at(ds_config, key)!r} must be {value!r}"
        for key, value in REQUIRED.items()
        if value_at(ds_config, key) != value
    ]
    if "gradient_clipping" not in ds_config:
        problems.append("gradient_clipping is missing: DeepSpeed would clip at 1.0 unasked")
    problems += unsupported(ds_config, _precision(ds_config))
    if problems:
        raise ConfigError("The DeepSpeed configuration does not fit:\n" + "\n".join(f"  {line}" for line in problems))


def _precision(ds_config: dict[str, Any]) -> str:
    return next((name for name in ("bf16", "fp16") if value_at(ds_config, f"{name}.enabled")), "fp32")
