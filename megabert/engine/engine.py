"""The engine: DeepSpeed, driven so that every stage does the same arithmetic.

Any number of uneven micro-steps, float32 accumulation and reduction, our own finite check before the optimizer, and
one fragment table for LAMB and checkpoints.
"""

import contextlib
import io
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megabert.config.deepspeed import REQUIRED, unsupported, value_at, zero_stage_of
from megabert.distributed.process_group import World
from megabert.engine.dataclass_outputs import flatten, unflatten
from megabert.engine.fragments import check_coverage, fragment_table, parameter_shapes
from megabert.engine.zero_stages import stage_of
from megabert.errors import ConfigError
from megabert.ops.lamb.reference import sums_of_squares
from megabert.optim import Fragment, Optimizer

_ALLREDUCE_BUCKET = 500_000_000  # elements, DeepSpeed's own default


class LossScaleFloor(ConfigError):
    """Gradients in fp16 overflow even at the smallest loss scale."""

    def __init__(self, scale: float) -> None:
        self.reason = f"precision=fp16: gradients overflow even at the smallest loss scale, {scale:g},"
        super().__init__(f"{self.reason} so the model has diverged. Lower the learning rate, or train in bf16 or fp32.")


class Engine:
    """A model, its optimizer and DeepSpeed around them.

    A step is: for each micro-step ``forward`` and ``backward``; then ``nonfinite_gradients``, agreed over ranks; then
    ``step`` or ``discard_gradients``. Every rank runs the same number of micro-steps, an empty one with a zero loss
    that still reaches every parameter.
    """

    def __init__(self, deepspeed_engine: Any, optimizer: Optimizer, world: World, max_grad_norm: float) -> None:
        self._deepspeed = deepspeed_engine
        self._world = world
        self._max_grad_norm = max_grad_norm
        self.optimizer = optimizer
        self.shapes = parameter_shapes(deepspeed_engine.module)
        """Whole shape of every parameter by name, a tied weight once, in the same order on every rank."""
        self.fragments: list[Fragment] = fragment_table(deepspeed_engine)
        """This rank's pieces of the float32 masters; the one table for LAMB and checkpoints."""
        self._stage = stage_of(deepspeed_engine, self.fragments)
        check_coverage(self.fragments, self.shapes, group=world.control, replicated=self._stage.replicated)
        optimizer.attach(self.fragments, list(self.shapes), None if self.is_replicated else dist.all_reduce)
        self.step_was_skipped = False
        """Whether DeepSpeed refused the last ``step``: gradients that overflowed while they were reduced."""

    @property
    def module(self) -> torch.nn.Module:
        """The model; under ZeRO-3 its parameters are whole only inside ``forward``."""
        return self._deepspeed.module

    @property
    def is_replicated(self) -> bool:
        """Whether every rank holds every parameter whole (stage 0)."""
        return self._stage.replicated

    @property
    def zero_stage(self) -> int:
        """DeepSpeed's ZeRO stage."""
        return int(self._deepspeed.zero_optimization_stage())

    @property
    def loss_scale(self) -> float:
        """Factor on the loss in fp16; 1 otherwise."""
        return float(getattr(self._deepspeed.optimizer, "loss_scale", 1.0))

    @property
    def has_dynamic_loss_scale(self) -> bool:
        """Whether an overflow is an ordinary event that lowers the loss scale (fp16)."""
        return bool(getattr(self._deepspeed.optimizer, "dynamic_loss_scale", False))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Run the model on one micro-batch."""
        # As DeepSpeedEngine.forward does; its hooks on outputs would miss tensors inside a dataclass.
        if not self.is_replicated:
            self._deepspeed.optimizer.clear_backward_seen_flag()
        return self._deepspeed.module(*inputs, **options)

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients of ``loss``, scaled in fp16; DeepSpeed averages them over ranks.

        Args:
            loss: Scalar; ``world_size * (sum_mlm / N_masked + sum_nsp / N_instances)`` for means over the global batch.
        """
        if loss.grad_fn is None:
            raise ValueError(
                "backward() needs a loss that depends on the model; an empty micro-batch gives 0 * outputs."
            )
        loss.register_hook(self._before_backward)
        self._deepspeed.backward(loss, scale_wrt_gas=False)

    def nonfinite_gradients(self) -> list[str]:
        """Name the parameters whose gradients hold inf or NaN on this rank, before anything was updated.

        Stages 0 and 1 look at local gradients, before the reduction spreads a NaN to every rank; stages 2 and 3 reduce
        in each micro-step and look at this rank's pieces of the result.
        """
        named = list(self._stage.gradients())
        if not named:
            return []
        finite = torch.isfinite(_peaks([gradient for _, gradient in named])).tolist()  # one synchronisation
        return [name for (name, _), is_finite in zip(named, finite, strict=True) if not is_finite]

    def step(self) -> float:
        """Reduce, clip, update; return the global gradient norm before clipping, inf where DeepSpeed skipped the step.

        Call it only after ``nonfinite_gradients`` was empty on every rank.

        Raises:
            LossScaleFloor: In fp16, see there.
        """
        if self.is_replicated:
            return self._unsharded_step()
        with self._naming_the_floor():
            self._deepspeed.step()
        self.step_was_skipped = bool(self._deepspeed.optimizer.overflow)
        return math.inf if self.step_was_skipped else float(self._deepspeed.get_global_grad_norm())

    def discard_gradients(self) -> None:
        """Forget what was accumulated, on every rank alike; in fp16 this also lowers the loss scale."""
        self._stage.discard()
        self._deepspeed._unmanaged_backward_count = 0
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
        """Evaluation mode without gradients; every rank must run the same number of ``forward`` calls inside."""
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.module.train()

    def refresh(self) -> None:
        """Bring the model's weights up to the float32 masters, after these were written from outside."""
        self._stage.refresh()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the tensors: the state of the loss scaler."""
        if not self.has_dynamic_loss_scale:
            return {}
        scaler = self._deepspeed.optimizer.loss_scaler
        return {"loss_scaler": {name: getattr(scaler, name) for name in _SCALER_STATE}}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``state`` returned; another precision ignores it."""
        if self.has_dynamic_loss_scale:
            for name, value in state.get("loss_scaler", {}).items():
                setattr(self._deepspeed.optimizer.loss_scaler, name, value)

    def _before_backward(self, gradient: Tensor) -> None:
        self._deepspeed._backward_prologue()

    @torch.no_grad()
    def _unsharded_step(self) -> float:
        """Stage 0: reduce and clip here, with a float64 norm; torch's float32 norm is off by 1e-4 on a CPU."""
        self._deepspeed.buffered_allreduce_fallback(elements_per_buffer=_ALLREDUCE_BUCKET)
        gradients = [gradient.view(-1) for _, gradient in self._stage.gradients()]
        norm = math.sqrt(sums_of_squares(gradients, self._world.device).sum().item())
        self.step_was_skipped = not math.isfinite(norm)
        if self.step_was_skipped:
            self.discard_gradients()
            return math.inf
        if self._max_grad_norm:  # the same form as ZeRO's
            torch._foreach_div_(gradients, max(1.0, (norm + 1e-6) / self._max_grad_norm))
        self._deepspeed.enable_backward_allreduce = False
        try:
            self._deepspeed.step()
        finally:
            self._deepspeed.enable_backward_allreduce = True
        return norm


_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


def build_engine(model: torch.nn.Module, optimizer: Optimizer, ds_config: dict[str, Any], world: World) -> Engine:
    """Wrap a model and its optimizer in DeepSpeed.

    Args:
        model: In float32, with the same weights on every rank.
        optimizer: Over ``model.named_parameters()``; it is attached to the fragment table.
        ds_config: Complete: no ``"auto"``, with every key of ``config.deepspeed.REQUIRED``, ``gradient_clipping`` (0
            does not clip) and at most one of ``bf16.enabled`` and ``fp16.enabled``. Give ``steps_per_print`` a huge
            value and leave ``wall_clock_breakdown`` off; the throughput timer is switched off here.
        world: This rank.

    Raises:
        ConfigError: A required key is missing or says something else, or the combination is not supported.
    """
    _check(ds_config)
    import deepspeed

    stage, sixteen_bits = zero_stage_of(ds_config), _precision(ds_config) != "fp32"
    initial = {name: p.detach().float().cpu().clone() for name, p in model.named_parameters()} if sixteen_bits else {}
    # The throughput timer would synchronise the GPU in every micro-step.
    complete = {**ds_config, "timers": {"throughput": {"enabled": False}}}
    if stage == 0:
        complete["gradient_clipping"] = 0.0  # clipped in Engine
    if stage == 3:
        flatten(model)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its memory use; stdout is for results
        deepspeed_engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=complete)
    if stage == 3:
        unflatten(model)
    engine = Engine(deepspeed_engine, optimizer, world, float(ds_config["gradient_clipping"]))
    for fragment in engine.fragments if sixteen_bits else []:
        # DeepSpeed rounds the weights to 16 bits and makes the masters from those: give them the digits back.
        piece = initial[fragment.parameter].view(-1)[fragment.start : fragment.start + fragment.numel]
        fragment.view().copy_(piece)
    deepspeed_engine.module.train()
    return engine


def _peaks(gradients: list[Tensor]) -> Tensor:
    """Return a number of each tensor that is finite where all of it is."""
    if gradients[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(gradients, math.inf))
    # least and greatest element: on a CPU the infinity norm takes 16 times as long
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
