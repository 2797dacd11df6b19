"""The configuration of a pre-training run: all fields of a recipe, with a dataclass for each section.

It is long because all settings of a run stand in it; only models, phases and shards, which other programs read as well,
have files of their own.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from megabert.foundation.json_files import to_json
from megabert.settings.config import fields
from megabert.settings.config.extensions import load_extension
from megabert.settings.config.model import DecayRate, ModelConfig
from megabert.settings.config.names import given_fields
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.shards import ShardsConfig

Weights = Literal["trained", "average"]
OptimizerName = Literal["lamb", "adamw", "stable_adamw", "muon"]
OPTIMIZER_NAMES: tuple[str, ...] = get_args(OptimizerName)


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class DataConfig:
    """Where the shards are."""

    path: str | None = None
    """Folder or URL that ``megabert-data build`` wrote; a phase of length N reads ``PATH/instances/N``."""
    sources: Annotated[dict[fields.SourceName, str], Field(min_length=1)] | None = None
    """Several such folders by name, in place of ``path``: a phase reads all of them, in the shares that its ``mixture``
    or its ``temperature`` says."""
    cache: str | None = None
    """Folder on each node for the files of builds that are named by a URL, such as ``s3://bucket/build``: a file is
    fetched once, and later runs find it."""
    cache_limit: Annotated[float, Field(gt=0, le=10**9)] | None = None
    """Most gigabytes (10^9 bytes) that all of ``cache`` may hold; a fetch that would exceed it is refused."""

    @model_validator(mode="after")
    def _is_named_once(self) -> "DataConfig":
        if self.path is not None and self.sources is not None:
            raise ValueError(f"path={self.path} and sources={self.sources}; name one of the two")
        return self


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class OptimizerConfig:
    """The optimizer and its constants."""

    name: OptimizerName | str = "lamb"
    """Update rule: LAMB (You et al. 2020) for large batches, AdamW (Loshchilov & Hutter 2019) for small ones,
    StableAdamW (Wortsman et al. 2023), which shortens the step of a parameter with a sudden gradient, or Muon (Jordan
    et al. 2024), which orthogonalises the momentum of the layers' matrices; or the optimizer of an installed package,
    by its name."""
    lamb_variant: Literal["apex", "nvlamb", "paper", "deepspeed"] = "nvlamb"
    """Which LAMB: apex, the rule of NVIDIA's published BERT, corrects the moments' bias and gives parameters without
    weight decay (biases, LayerNorm) the plain learning rate; nvlamb corrects it and adapts every parameter; paper does
    not correct, and leaves biases and LayerNorm unadapted; deepspeed takes uncorrected norms, clips the trust ratio,
    and corrects the step size."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """Decay rates of the running first and second moments of the gradients."""
    eps: fields.Epsilon = 1e-6
    """Constant that is added to the root of the second moment."""
    weight_decay: fields.Weight = 0.01
    """Decoupled weight decay. Biases and LayerNorm parameters are not decayed."""
    max_grad_norm: fields.Norm = 1.0
    """Clip the global gradient norm at this value; 0, the default under stable_adamw and muon, does not clip."""
    clip_both: bool = False
    """StableAdamW and Muon only: clip by max_grad_norm as well."""
    muon_momentum: DecayRate = 0.95
    """Muon only: share of the momentum that a step keeps."""
    muon_scaling: Literal["match_rms_adamw", "original"] = "match_rms_adamw"
    """Muon only: factor on the learning rate of a matrix, by torch.optim.Muon's names. match_rms_adamw is
    0.2 * sqrt(max(rows, columns)), with which AdamW's rates and weight decay fit (Liu et al. 2025); original is
    sqrt(max(1, rows / columns))."""
    muon_adamw_ratio: fields.Rate = 1.0
    """Muon only: AdamW's learning rate over the phase's. AdamW trains all but the layers' matrices."""
    muon_heads: bool = False
    """Muon only: orthogonalise queries, keys and values of each head by themselves."""
    muon_dtype: Literal["fp32", "bf16"] = "fp32"
    """Muon only: type in which the Newton-Schulz iteration is computed."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a package's optimizer."""
    package: str | None = None
    """The package whose optimizer this is, with its version; a run records it, and continues with no other."""

    @property
    def has_lamb_passes(self) -> bool:
        """Whether the optimizer runs the op ``lamb``: LAMB does, and StableAdamW."""
        return self.name in LAMB_PASSES

    @model_validator(mode="before")
    @classmethod
    def _fill_in_defaults(cls, values: Any) -> Any:
        given = given_fields(values)
        if given is None:
            return values
        name, options, package = given.get("name", "lamb"), given.get("options"), given.get("package")
        if name in OPTIMIZER_NAMES:
            if options or package:
                raise ValueError(f"options and package belong to packages' optimizers, not to {name}; leave them out")
        elif name and isinstance(name, str) and not package:
            value, package = load_extension("optimizer", name, OPTIMIZER_NAMES, options or {}) or ({}, None)
            given |= {"options": to_json(value), "package": package}
        return {**({"max_grad_norm": 0.0} if str(name) in UNCLIPPED else {}), **given}

    @model_validator(mode="after")
    def _clips_once(self) -> "OptimizerConfig":
        given = f"max_grad_norm={self.max_grad_norm:g} with name={self.name}"
        if self.name in UNCLIPPED and self.max_grad_norm and not self.clip_both:
            raise ValueError(
                f"{given}, {UNCLIPPED[self.name]}. Set max_grad_norm to 0, or clip_both to true if it is meant"
            )
        if self.clip_both and not self.max_grad_norm:
            raise ValueError(
                f"clip_both=true and {given}: nothing is clipped; set max_grad_norm, or leave clip_both out"
            )
        return self


LAMB_PASSES = ("lamb", "stable_adamw")
UNCLIPPED = {
    "stable_adamw": "which shortens the step of a parameter with a sudden gradient by itself; clipping the global norm "
    "would shorten all of them",
    "muon": "whose updates of matrices are as long for large gradients as for small ones; clipping would only give a "
    "step with large ones less weight in the momentum",
}
"""Optimizers whose gradients are not clipped by their global norm by default, and why."""
MOMENTS = ("exp_avg", "exp_avg_sq")
"""Float32 tensors that every optimizer keeps besides the weights: Adam's, under torch's names. Muon's matrices have the
first one only."""


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class CheckpointConfig:
    """When checkpoints are written, and which are kept."""

    every_steps: fields.Count = 200
    """Steps between checkpoints; others are written at step 0, at the end of each phase, and after each best
    validation of the last one."""
    keep_last: fields.Count = 3
    """How many of the newest checkpoints to keep. The last good one, the best of the last phase, and the end of each
    phase are kept as well, unless a rollback returns to an earlier step."""
    keep_every_steps: fields.Count | None = None
    """Also keep, for good, the first checkpoint at or after every multiple of this number of steps; by default none."""


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class ValidationConfig:
    """How the held-out split is scored."""

    every_steps: fields.Count = 200
    """Steps between validations on the held-out split; one also ends each phase."""
    max_instances: fields.Count = 4096
    """Most held-out instances that a validation scores; they are the same ones each time."""
    weights: Weights = "trained"
    """Weights that are scored and that decide which checkpoint is the best: the trained ones, or their moving average.
    ``--checkpoint best`` takes the same ones."""
    probes: tuple[str, ...] = ()
    """Sets of minimal pairs that each validation scores: english, korean, or files in BLiMP's form. By default none."""


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class AverageConfig:
    """A moving average of the weights, beside the weights that are trained."""

    decay: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the average that each update keeps, such as 0.999; in the run's first updates less, (1 + t) / (10 + t)
    in update t. By default no average is kept. It takes the memory and the disk of one more float32 copy of the
    weights, shared out over ranks as the optimizer is."""


def _first_to_last(value: str) -> str:
    """Check that a range of steps does not end before it begins."""
    first, _, last = value.partition("-")
    if last and int(last) < int(first):
        raise ValueError(f"{value} ends before it begins; write FIRST-LAST, such as {last}-{first}")
    return value


_STEP = "[1-9][0-9]{0,11}"
ProfiledSteps = Annotated[str, Field(pattern=f"^{_STEP}(-{_STEP})?$"), AfterValidator(_first_to_last)]


TrackerName = Literal["trackio", "wandb"]


def _once_each(values: tuple[TrackerName, ...]) -> tuple[TrackerName, ...]:
    """Check that no tracker is named twice: two processes would write the same curve."""
    if len(set(values)) < len(values):
        raise ValueError("names a tracker twice; name each once")
    return values


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class LoggingConfig:
    """How often metrics are written, and which trackers show them."""

    every_steps: fields.Count = 10
    """Steps between log lines and TensorBoard points."""
    profile_steps: ProfiledSteps | None = None
    """Steps to record with torch.profiler into RUN/profile: a number or FIRST-LAST (the same as --profile)."""
    profile_ranks: Literal["main", "all"] = "main"
    """Which ranks record the profile: rank 0 alone, or all."""
    trackers: Annotated[tuple[TrackerName, ...], AfterValidator(_once_each)] = ()
    """Trackers that get the metrics in addition to TensorBoard: trackio, wandb. By default none."""
    tracker_project: Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")] = "megabert"
    """Project that the trackers show the run in, among others: letters, digits, - and _."""
    tracker_mode: Literal["offline", "online"] = "offline"
    """Whether trackers keep the metrics on this machine (offline), or send them over the network as they are made."""


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class WatchdogConfig:
    """After how long without progress a rank is ended."""

    min_step_s: fields.Seconds = 60.0
    """A step counts as hanging after this many seconds, or after ten times the 99th percentile of the phase's steps,
    whichever is longer."""
    other_s: fields.Seconds = 1800.0
    """Seconds after which a validation, a checkpoint, or one of the first steps of a phase counts as hanging."""
    start_up_s: fields.Seconds = 3600.0
    """Seconds after which the start (reading, building the model, loading a checkpoint, finding micro_batch_tokens), or
    the check of one shard, counts as hanging."""


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class RollbackConfig:
    """When a run returns to an earlier checkpoint, and leaves out the batches that are blamed."""

    after_skips: fields.Count = 10
    """Number of batches in a row with non-finite loss or gradients after which the run rolls back."""
    max_in_a_row: fields.Count = 3
    """Rollbacks to the same checkpoint before the run ends with a diagnosis: then the data is not the cause."""
    spike_ratio: Annotated[float, Field(gt=1, le=10**6)] | None = None
    """A loss above this multiple of its running median is a spike; by default spikes are not looked for."""
    spike_steps: fields.Count = 5
    """Number of spikes in a row after which the run rolls back."""
    spike_window: Annotated[int, Field(ge=2, le=10_000)] = 100
    """Number of losses in the running median. It restarts with each phase, and nothing counts as a spike before half of
    them are known."""


Backend = Literal["auto", "triton", "torch"]
AttentionBackend = Literal["auto", "triton", "varlen", "torch"]
BackendOrApex = Literal["auto", "triton", "apex", "torch"]
Precision = Literal["auto", "fp32", "bf16", "fp16", "fp8"]


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class OpsConfig:
    """Which backend computes each fused op."""

    layer_norm: BackendOrApex = "auto"
    """Backend of bias + dropout + residual + LayerNorm."""
    attention: AttentionBackend = "auto"
    """Backend of variable-length attention; varlen is torch's own, for a ModernBERT without dropout of attention."""
    bias_gelu: Backend = "auto"
    """Backend of bias + GELU."""
    cross_entropy: Backend = "auto"
    """Backend of the summed loss over the vocabulary."""
    lamb: BackendOrApex = "auto"
    """Backend of the two passes of LAMB and StableAdamW; apex, on a GPU without sharding, replaces all of LAMB."""
    tile_sizes: str | None = None
    """File of tile sizes that megabert tune measured on such a device; by default the committed table."""
    unproven: Literal["fallback", "refuse", "trust"] = "fallback"
    """A backend that differs from its op's definition on this device is replaced by the next one (fallback), or ends
    the run (refuse). Each is held against the definition in its first run on a device; trust leaves that out."""

    @property
    def backends(self) -> dict[str, str]:
        """The backend that is asked for, by op."""
        return {op: getattr(self, op) for op in ("layer_norm", "attention", "bias_gelu", "cross_entropy", "lamb")}


@dataclass(frozen=True, kw_only=True, config=fields.STRICT)
class RunConfig:
    """Everything that defines a pre-training run."""

    name: str = "run"
    """Name of the recipe, as the model card shows it."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 42
    """Seed that keys initialisation, order of data, dynamic masks and dropout."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    phases: Annotated[tuple[PhaseConfig, ...], Field(min_length=1)]
    """The phases in their order: sequence lengths, each with its own data, batch and schedule."""
    shards: ShardsConfig = ShardsConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    z_loss: fields.Weight = 0.0
    """Weight of the z-loss in the objective: the mean square of the log of the softmax's normaliser at masked positions
    (Chowdhery et al. 2022, who take 1e-4), which keeps logits from drifting away together; 0 leaves it out."""
    average: AverageConfig = AverageConfig()
    precision: Precision = "auto"
    """Arithmetic of the model; auto means bf16 on a GPU that has it, fp16 on other GPUs, and fp32 on a CPU. fp8 is bf16
    with products of 8 bits in the encoder's layers, but for gradients of weights; no GPU has run it yet."""
    grad_accum_dtype: Literal["fp32"] = "fp32"
    """Type in which gradients are accumulated over micro-steps and reduced over ranks; only fp32."""
    init_from: str | None = None
    """Weights to start from: a run folder or a Hugging Face folder."""
    init_tiling: bool = False
    """Fill a model larger than ``init_from`` with its weights, layers and widths tiled, as ModernBERT-large began with
    ModernBERT-base (Warner et al. 2024). The sizes are then the recipe's."""
    init_vocabulary: Literal["same", "transfer"] = "same"
    """Vocabulary of the shards: the same one as ``init_from`` has, or another, to which the weights are transferred.
    Pieces that both have keep their embeddings; new ones begin as the mean of the old pieces of their text (Gee et al.
    2022)."""
    fork: Annotated[str, Field(pattern=r"^.+@[0-9]{1,15}$")] | None = None
    """Another run's checkpoint to continue from, RUN@STEP, with its weights, moments, step and data position. Fields
    that neither files nor flags name are taken from that run, unless a recipe is named."""
    engine: str = "auto"
    """DeepSpeed configuration: a name in ``ds_configs/`` or a file; auto means zero1."""
    micro_batch_tokens: fields.PackedTokens | Literal["auto"] = "auto"
    """Packed tokens that a rank takes in one micro-step; auto tries out the largest number that fits, once."""
    activation_checkpointing: bool = False
    """Recompute the layers in the backward pass: less memory, about a third more time."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    validation: ValidationConfig = ValidationConfig()
    logging: LoggingConfig = LoggingConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    rollback: RollbackConfig = RollbackConfig()
    ops: OpsConfig = OpsConfig()

    def model_in_phase(self, index: int) -> ModelConfig:
        """Return the model as a phase, counted from 0, trains it: with the phase's base of rotary positions."""
        base = self.phases[index].global_rope_theta
        return self.model if base is None else replace(self.model, global_rope_theta=base)

    def longest_before(self, index: int) -> int:
        """Return the greatest ``max_seq_length`` of the phases before one, which is counted from 0; 0 for the first."""
        return max((phase.max_seq_length for phase in self.phases[:index]), default=0)

    def weights_of(self, checkpoint: str) -> Weights:
        """Return which weights of a checkpoint are meant: of ``best`` the weights that were scored."""
        return self.validation.weights if checkpoint == "best" else "trained"

    @property
    def most_checkpoints(self) -> int:
        """How many checkpoints a run has on its disk at most: those kept, and one that is being written."""
        every = self.checkpoint.keep_every_steps
        kept_for_good = sum(phase.num_steps for phase in self.phases) // every + 1 if every else 0
        best_and_ends_of_phases = len(self.phases)  # the end of the last phase is the newest one
        return self.checkpoint.keep_last + best_and_ends_of_phases + kept_for_good + 1


_FREE = """
    name data shards phases.*.name phases.*.data engine micro_batch_tokens activation_checkpointing checkpoint
    validation.every_steps validation.max_instances validation.probes logging watchdog rollback ops"""
FREE_ON_RESUME = tuple(_FREE.split())
"""Paths (with everything below them) that are free to change on resume; every other field is ``science``.

The folders of the data, and what a recipe asks of shards, are free because the shards themselves are compared by their
manifests' SHA-256.
"""


def is_science(path: str) -> bool:
    """Whether a change of the field at this dotted path makes it another experiment."""
    pattern = ".".join("*" if part.isdecimal() else part for part in path.split("."))
    return not any(pattern == field or pattern.startswith(f"{field}.") for field in FREE_ON_RESUME)
