"""The run configuration: what a recipe says, one dataclass a section."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from megabert.config.model import ModelConfig
from megabert.config.strict import STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DataConfig:
    """Where the shards lie."""

    path: str | None = None
    """Folder of a ``megabert-data build``; a phase of length N reads ``PATH/instances/N``."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PhaseConfig:
    """One sequence length with its own data, batch and schedule."""

    name: str | None = None
    """Shown in logs; default ``phase1``, ``phase2``, ..."""
    data: str | None = None
    """Folder of instance shards; default ``data.path/instances/max_seq_length``."""
    max_seq_length: Annotated[int, Field(ge=8)] = 128
    """Longest instance in tokens."""
    steps: PositiveInt
    """Optimizer updates in this phase."""
    global_batch_size: PositiveInt
    """Instances a step over all ranks; any positive number."""
    learning_rate: PositiveFloat
    """Peak learning rate."""
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the steps with linearly rising learning rate."""
    decay: Literal["polynomial", "constant"] = "polynomial"
    """Shape after warm-up."""
    decay_power: PositiveFloat = 1.0
    """Exponent of the polynomial decay: 1 is linear, 0.5 NVIDIA's LAMB recipe."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OptimizerConfig:
    """Update rule."""

    name: Literal["lamb", "adamw"] = "lamb"
    """LAMB (You et al. 2020) for large batches, AdamW (Loshchilov & Hutter 2019) for small ones."""
    lamb_variant: Literal["nvlamb", "paper", "deepspeed"] = "nvlamb"
    """nvlamb: bias-corrected moments, every parameter adapted; paper: no correction, no-decay parameters not adapted;
    deepspeed: uncorrected norm, clipped ratio, correction in the step size."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the first and second moments."""
    eps: PositiveFloat = 1e-6
    """Added to the root of the second moment."""
    weight_decay: NonNegativeFloat = 0.01
    """Decoupled decay; biases and LayerNorm parameters take none."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Clip the global gradient norm at this value; 0 does not clip."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CheckpointConfig:
    """When checkpoints are written and kept."""

    every_steps: PositiveInt = 200
    """Steps between checkpoints; one is also written at step 0 and at the end of each phase."""
    keep_last: PositiveInt = 3
    """How many to keep; the last good one, the best of the last phase, and the end of each phase are never deleted."""
    keep_every_steps: PositiveInt | None = None
    """Keep the first checkpoint at or after every multiple of this for good; by default none."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ValidationConfig:
    """How the held-out split is scored."""

    every_steps: PositiveInt = 200
    """Steps between validations on the held-out split; one also ends each phase."""
    max_instances: PositiveInt = 4096
    """At most so many held-out instances a validation, the same ones each time."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LoggingConfig:
    """How often metrics are written."""

    every_steps: PositiveInt = 10
    """Steps between log lines and TensorBoard points."""
    profile_steps: Annotated[str, BeforeValidator(str), Field(pattern=r"^[1-9][0-9]*(-[1-9][0-9]*)?$")] | None = None
    """Steps to record with torch.profiler into RUN/profile, a number or FIRST-LAST (as --profile)."""
    profile_ranks: Literal["main", "all"] = "main"
    """Whether rank 0 alone records them, or every rank."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WatchdogConfig:
    """After how long a rank that does not get on is ended."""

    min_step_s: PositiveFloat = 60.0
    """Seconds; a step hangs after ten times the 99th percentile of the phase's steps, but not before this."""
    other_s: PositiveFloat = 1800.0
    """Seconds after which a validation, a checkpoint, or one of the first steps of a phase hangs."""
    start_up_s: PositiveFloat = 3600.0
    """Seconds after which building the model, loading the checkpoint or finding the token budget hangs."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RollbackConfig:
    """When a run goes back to its last checkpoint and leaves out the data in between."""

    after_skips: PositiveInt = 10
    """Batches in a row whose loss or gradients were not finite."""
    max_in_a_row: PositiveInt = 3
    """Returns to one checkpoint; where these do not help it is not the data, and the run ends with a diagnosis."""
    spike_ratio: Annotated[float, Field(gt=1)] | None = None
    """A loss above so many times its running median is a spike; by default none is."""
    spike_steps: PositiveInt = 5
    """Spikes in a row that send the run back."""
    spike_window: Annotated[int, Field(ge=2)] = 100
    """Losses of the running median; it begins anew in each phase, and nothing is a spike before half of them."""


Backend = Literal["auto", "triton", "torch"]
BackendOrApex = Literal["auto", "triton", "apex", "torch"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class OpsConfig:
    """Backend of each fused op."""

    layer_norm: BackendOrApex = "auto"
    """Backend of bias + dropout + residual + LayerNorm."""
    attention: Backend = "auto"
    """Backend of variable-length attention."""
    bias_gelu: Backend = "auto"
    """Backend of bias + GELU."""
    cross_entropy: Backend = "auto"
    """Backend of the summed loss over the vocabulary."""
    lamb: BackendOrApex = "auto"
    """Backend of the optimizer's two passes; apex, on a GPU without sharding, replaces the optimizer."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunConfig:
    """Everything that defines a pre-training run."""

    name: str = "run"
    """Name of the recipe, for the model card."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Keys initialisation, order of data and dropout."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    phases: Annotated[tuple[PhaseConfig, ...], Field(min_length=1)]
    """Sequence lengths with their own schedules, in order."""
    optimizer: OptimizerConfig = OptimizerConfig()
    precision: Precision = "auto"
    """Arithmetic of the model; auto: bf16 on a GPU that has it, else fp16 on a GPU, fp32 on a CPU."""
    grad_accum_dtype: Literal["fp32"] = "fp32"
    """Accumulation and reduction of gradients over micro-steps and ranks; only fp32."""
    init_from: str | None = None
    """Start from these weights: a run folder or a Hugging Face folder."""
    fork: Annotated[str, Field(pattern=r"^.+@\d+$")] | None = None
    """Begin with weights, moments, step and data position of another run's checkpoint, RUN@STEP. Fields that neither
    recipe nor flags name are that run's."""
    engine: str = "auto"
    """A DeepSpeed configuration: a name of ``ds_configs/`` or a file; auto: zero1."""
    micro_batch_tokens: int | Literal["auto"] = "auto"
    """Packed tokens a rank takes in one micro-step; auto: the largest that fits, found once."""
    activation_checkpointing: bool = False
    """Recompute layers in the backward pass: less memory, about a third more time."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    validation: ValidationConfig = ValidationConfig()
    logging: LoggingConfig = LoggingConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    rollback: RollbackConfig = RollbackConfig()
    ops: OpsConfig = OpsConfig()

    @property
    def most_checkpoints(self) -> int:
        """How many a run has on its disk at most: those kept, and one that is being written."""
        every = self.checkpoint.keep_every_steps
        kept_for_good = sum(phase.steps for phase in self.phases) // every + 1 if every else 0
        best_and_ends_of_phases = len(self.phases)  # that of the last phase is the newest
        return self.checkpoint.keep_last + best_and_ends_of_phases + kept_for_good + 1


ENGINE_FIELDS = (
    "name",
    "data",
    "phases.*.name",
    "phases.*.data",
    "engine",
    "micro_batch_tokens",
    "activation_checkpointing",
    "checkpoint",
    "validation",
    "logging",
    "watchdog",
    "rollback",
    "ops",
)
"""Paths (with everything below them) that are free to change on resume; every other field is ``science``.

The folders of the data are free because the shards themselves are compared by their manifests' SHA-256.
"""


def is_science(path: str) -> bool:
    """Whether a change of the field at this dotted path makes it another experiment."""
    pattern = ".".join("*" if part.isdigit() else part for part in path.split("."))
    return not any(pattern == field or pattern.startswith(f"{field}.") for field in ENGINE_FIELDS)
