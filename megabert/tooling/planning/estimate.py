"""The needs of a recipe on some GPUs: memory, FLOPs, days, disk, passes over the corpus."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from megabert.data.mixture import Mixture, open_training_mixture
from megabert.foundation.errors import ConfigError
from megabert.foundation.json_files import to_json
from megabert.observability.flops import Gpu, fp8_work, require_peak
from megabert.settings.config.deepspeed import DEFAULT_BUCKET_SIZE, deepspeed_of, zero_stage_of
from megabert.settings.config.loading import phase_name
from megabert.settings.config.names import value_at
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import RunConfig
from megabert.tokens.shards.folder import InstanceStatistics
from megabert.tooling.measurements.measured import MeasuredRates
from megabert.tooling.planning import step_time as timing
from megabert.tooling.planning.memory import BUDGETS, Memory, count_parameters, estimate_memory, planned_budget
from megabert.tooling.planning.passes import name_by_build, sum_by_source
from megabert.training.expected_time import step_flops

MASKED_PER_TOKEN = 20 / 128
"""Share of predicted positions that is assumed without shards, unless the recipe states one: BERT's own 20 of 128."""
FALLBACK_EFFICIENCY = 0.44
"""Share of the peak that is assumed for other GPUs than those in ``EFFICIENCY``: the A100's."""
SMALL_WIDTH, SMALL_TOKENS, MIXING_LENGTH = 256, 100e6, 64
"""Width of a model and tokens of a training up to which sequences of this length teach hardly more than frequencies:
two layers of 128 stay at the unigram's loss for a thousand steps at 128 tokens (docs/demo.md)."""
EFFICIENCY = {"v100": 0.49, "a100": 0.44, "a100-40gb": 0.44, "h100": 0.44}
"""Share of the peak while computing by GPU: fitted on published tables (docs/before_a_run.md), and for the H100 what
steps of BERT-Large on one card reached, 43.5 to 46.9% (benchmarks/notes.md)."""
MODERNBERT_EFFICIENCY = {768: 0.36, 1024: 0.425}
"""Share that steps of ModernBERT reached on one H100, by the model's width (benchmarks/notes.md). The H200 has the same
chip."""

_SCATTERED = timing.Communication(reduce_scatter_bytes=4, is_optimizer_sharded=True)
_OVERLAPPED = replace(
    _SCATTERED, all_gather_bytes=2, is_gather_overlapped=True, is_overlapped=True, micro_step_pass_bytes=6.3
)
COMMUNICATION = {
    0: timing.Communication(all_reduce_bytes=4),
    1: _OVERLAPPED,
    2: replace(_OVERLAPPED, is_per_micro_step=True),
    3: replace(_SCATTERED, micro_step_gather_bytes=2, is_per_micro_step=True, micro_step_pass_bytes=10),
}
"""What our engines send in a step, by ZeRO stage, as counted by ``tests/several_ranks/test_wire.py``.

Gradients are float32 at every stage. Stage 1 scatters them once per step, stage 2 in each micro-step, both bucket by
bucket during the backward pass; both gather 16-bit weights once, during the forward pass. Stage 3 scatters in each
micro-step, gathers weights in the forward pass and keeps them for the backward pass, up to
``stage3_max_live_parameters``. What DeepSpeed hides there is not counted.

At stages 1 and 2 products read and write float32 sums, and no 16-bit gradients: 6.3 bytes in each micro-step
(``benchmarks/results/optimizer_step.log``), less in the first. At stage 3 a micro-step adds 16-bit gradients (2
bytes) to float32 ones (4 read, 4 written).
"""


class PhaseEstimate(NamedTuple):
    """What one phase takes."""

    name: str
    steps: int
    global_batch_size: int
    max_seq_length: int
    tokens_per_step: float
    flops: float
    micro_steps: int
    step: timing.StepTime
    mfu_pct: float
    passes: dict[str, float] | None
    """How often the text of each source is read, by its name: all instances once are ``dupe_factor`` times. None if the
    data are not known."""

    @property
    def hours(self) -> float:
        """Wall time of all steps, without validations and checkpoints."""
        return self.steps * self.step.total_s / 3600


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The needs of a recipe on a cluster."""

    config: RunConfig
    """The recipe, with the vocabulary and the precision that ``auto`` comes to."""
    cluster: timing.Cluster
    zero_stage: int
    parameters: int
    memory_gib: dict[int, dict[int, float]]
    """GiB per GPU by ZeRO stage and token budget."""
    micro_batch_tokens: int
    memory: Memory
    """Memory of one GPU with this stage and token budget, part by part."""
    efficiency: float
    """Share of the peak while computing; in fp8 the share that the same model has in bf16."""
    is_efficiency_assumed: bool
    communication: timing.Communication
    measured: MeasuredRates | None = None
    """Rates that the times follow from; None if they follow from datasheets."""
    phases: tuple[PhaseEstimate, ...] = ()

    @property
    def hours(self) -> float:
        """Wall time of all phases."""
        return sum(phase.hours for phase in self.phases)

    @property
    def flops(self) -> float:
        """FLOPs of the whole run."""
        return sum(phase.flops * phase.steps for phase in self.phases)

    @property
    def passes(self) -> dict[str, float] | None:
        """Passes over each source, all phases together; None if any phase's data are not known."""
        known = [phase.passes for phase in self.phases if phase.passes is not None]
        return sum_by_source(known) if len(known) == len(self.phases) else None


def estimate(
    config: RunConfig,
    cluster: timing.Cluster,
    *,
    efficiency: float | None = None,
    instances: int | None = None,
    measured: MeasuredRates | None = None,
) -> Estimate:
    """Estimate a recipe on a cluster. Neither GPUs nor data need to be there.

    Args:
        config: The resolved configuration. Where ``data.path`` is set, lengths and vocabulary are read from the shards.
        cluster: GPUs and nodes.
        efficiency: Share of the peak while computing, in fp8 the share in bf16; None takes the known share.
        instances: Rows of each phase's shards, for the number of passes, if there are no shards yet.
        measured: Rates of the cluster's machines, which take the place of datasheets and efficiency.

    Raises:
        ConfigError: A micro-batch of one instance does not fit, the engine contradicts the precision, or another model
            was measured.
        DataError: ``data.path`` is set, and the shards are missing or damaged.
    """
    # The work: data, model, precision and ZeRO stage, all of which may follow from others.
    shards = [open_training_mixture(config, index) for index in range(len(config.phases))]
    config = _resolve(config, shards, cluster.gpu)
    if measured is not None:
        measured.refuse_other_model(to_json(config.model), config.precision)
    stage = zero_stage_of(deepspeed_of(config, config.precision))
    parameters = count_parameters(config.model)
    # How it fits: memory by stage and token budget decides the number of micro-steps.
    statistics = [_statistics_of(config, *each, instances) for each in zip(config.phases, shards, strict=True)]
    memory_of = partial(estimate_memory, config, statistics, parameters=parameters, world_size=cluster.world_size)
    longest = max(phase.max_seq_length for phase in config.phases)
    shown = sorted({*BUDGETS, longest, *([config.micro_batch_tokens] if config.micro_batch_tokens != "auto" else [])})
    table = {
        stage: {budget: memory_of(zero_stage=stage, micro_batch_tokens=budget).total_gib for budget in shown}
        for stage in sorted({1, 2, 3, stage})
    }
    if measured is not None and config.micro_batch_tokens == "auto":
        config = replace(config, micro_batch_tokens=max(phase.tokens for phase in measured.phases))
    budget = _budget(config, statistics, table[stage], cluster)
    whole = Estimate(
        config=config,
        cluster=cluster,
        zero_stage=stage,
        parameters=parameters,
        memory_gib=table,
        micro_batch_tokens=budget,
        memory=memory_of(zero_stage=stage, micro_batch_tokens=budget),
        efficiency=_efficiency_of(config, cluster.gpu) if efficiency is None else efficiency,
        is_efficiency_assumed=efficiency is None and cluster.gpu.name not in EFFICIENCY,
        communication=communication_of(config, stage, parameters),
        measured=measured,
    )
    # How long it takes: each phase by itself.
    passes = [_passes_of(config, phase, split, instances) for phase, split in zip(config.phases, shards, strict=True)]
    phases = map(partial(_estimate_phase, whole), range(len(passes)), statistics, passes)
    return replace(whole, phases=tuple(phases))


def communication_of(config: RunConfig, zero_stage: int, parameters: int) -> timing.Communication:
    """Return the traffic of a recipe's ZeRO stage, and the part that its engine file lets it hide.

    Args:
        config: The run; ``model.vocab_size`` must be a number.
        zero_stage: ZeRO stage, 0 to 3.
        parameters: Number of parameters.
    """
    engine, sent = deepspeed_of(config, config.precision), COMMUNICATION[zero_stage]
    if config.precision == "fp32":  # weights travel in 4 bytes, not in 2
        gathers = 2 * sent.all_gather_bytes, 2 * sent.micro_step_gather_bytes
        sent = replace(sent, all_gather_bytes=gathers[0], micro_step_gather_bytes=gathers[1])
    if zero_stage not in (1, 2):
        return sent
    # One bucket holds the vocabulary, which is read first, and known last.
    size = value_at(engine, "zero_optimization.reduce_bucket_size") or DEFAULT_BUCKET_SIZE
    vocabulary = config.model.padded_vocab_size * config.model.embedding_width
    return replace(
        sent,
        is_overlapped=value_at(engine, "zero_optimization.overlap_comm") is not False,
        exposed_share=min(1.0, vocabulary / parameters),
        buckets=1 + math.ceil(max(0, parameters - vocabulary) / size),
    )


def steps_that_fit(whole: Estimate, hours: float) -> list[int]:
    """Return the steps of each phase that fit into some hours, all phases shortened by the same factor."""
    share = min(1.0, hours / whole.hours)
    return [max(1, int(phase.steps * share)) for phase in whole.phases]


def describe_small_budget(config: RunConfig) -> list[str]:
    """Return a line on the recipes that learn, for a small model on few tokens that begins with long sequences."""
    tokens = sum(phase.num_instances * phase.max_seq_length for phase in config.phases)
    is_small = config.model.hidden_size <= SMALL_WIDTH and tokens < SMALL_TOKENS
    if not is_small or config.phases[0].max_seq_length < MIXING_LENGTH or config.model.family == "modernbert":
        return []
    return [
        f"NOTE: {tokens / 1e6:,.0f} million tokens in sequences of {config.phases[0].max_seq_length} from the start: a "
        "small model hardly learns from them to look at its context. The recipe demo, which begins with 16, does; "
        "demo_modern is a ModernBERT."
    ]


def _efficiency_of(config: RunConfig, gpu: Gpu) -> float:
    share = EFFICIENCY.get(gpu.name, FALLBACK_EFFICIENCY)
    is_measured = config.model.family == "modernbert" and gpu.name in ("h100", "h200")
    return MODERNBERT_EFFICIENCY.get(config.model.hidden_size, share) if is_measured else share


def _estimate_phase(
    whole: Estimate, index: int, statistics: InstanceStatistics, passes: dict[str, float] | None
) -> PhaseEstimate:
    config, cluster, phase = whole.config, whole.cluster, whole.config.phases[index]
    # Means of the data stand for every batch; attention's share follows the mean length.
    batch, length = round(phase.num_instances / phase.num_steps), statistics.tokens / statistics.rows
    tokens = batch * length
    flops = step_flops(config, index, statistics)
    micro_steps = max(1, -(-round(tokens) // (cluster.world_size * whole.micro_batch_tokens)))
    work = timing.StepWork(
        parameters=whole.parameters, flops=flops, micro_steps=micro_steps, instances=batch, tokens=round(tokens)
    )
    if whole.measured is None:
        rates = timing.datasheet_rates(cluster, efficiency=whole.efficiency, precision=config.precision)
        if config.precision == "fp8":
            in_8_bits, cast_bytes = fp8_work(config.model, tokens=round(tokens))
            rates = timing.fp8_rates(rates, cluster.gpu, flops=flops, fp8_flops=in_8_bits, cast_bytes=cast_bytes)
    else:
        per_token, layers, longest = flops / tokens, config.model.num_hidden_layers, phase.max_seq_length
        rates = timing.rates_of_proof(whole.measured, cluster, flops_per_token=per_token, layers=layers, length=longest)
    step = timing.step_time(work, cluster, whole.communication, rates)
    peak = cluster.world_size * cluster.gpu.peak_tflops[config.precision] * 1e12
    return PhaseEstimate(
        name=phase_name(config, index),
        steps=phase.num_steps,
        global_batch_size=batch,
        max_seq_length=phase.max_seq_length,
        tokens_per_step=tokens,
        flops=flops,
        micro_steps=micro_steps,
        step=step,
        mfu_pct=100 * flops / step.total_s / peak,
        passes=passes,
    )


def _passes_of(
    config: RunConfig, phase: PhaseConfig, shards: Mixture | None, instances: int | None
) -> dict[str, float] | None:
    if shards is not None:
        return name_by_build(config, shards, shards.passes(phase.num_instances))
    # The rows of shards hold the corpus ``dupe_factor`` times.
    return None if instances is None else {"": phase.num_instances * (config.shards.dupe_factor or 1) / instances}


def _statistics_of(
    config: RunConfig, phase: PhaseConfig, shards: Mixture | None, instances: int | None
) -> InstanceStatistics:
    """Return the totals of a phase's shards. Without shards every sequence is assumed to be full."""
    if shards is not None:
        return shards.statistics_in(phase)
    rows, length = instances or phase.num_instances, phase.max_seq_length
    masked = phase.most_masked or config.shards.masked_lm_prob or MASKED_PER_TOKEN
    return InstanceStatistics(
        rows=rows,
        tokens=rows * length,
        masked_tokens=round(rows * length * masked),
        max_seq_length=length,
        max_masked=round(length * masked),
    )


def _resolve(config: RunConfig, shards: list[Mixture | None], gpu: Gpu) -> RunConfig:
    """Return the configuration with what ``auto`` and numbers of tokens come to: precision, vocabulary, steps."""
    precision = gpu.best_precision if config.precision == "auto" else config.precision
    require_peak(precision, gpu)
    pieces = shards[0].first.metadata.vocab_size if shards[0] else config.shards.planned_vocab_size
    phases = []
    for phase, split in zip(config.phases, shards, strict=True):
        # Without shards every instance is taken to be full.
        rows, tokens = (split.statistics.rows, split.statistics.tokens) if split else (1, phase.max_seq_length)
        phases.append(phase.with_steps(rows=rows, tokens=tokens))
    return replace(config, precision=precision, phases=tuple(phases), model=config.model.with_pieces(pieces))


def _budget(
    config: RunConfig, statistics: Sequence[InstanceStatistics], totals: dict[int, float], cluster: timing.Cluster
) -> int:
    """Return the token budget that the recipe sets, or the largest one that a phase finds by trying."""
    if config.micro_batch_tokens != "auto":
        return config.micro_batch_tokens
    budgets = []
    for phase, data in zip(config.phases, statistics, strict=True):
        share = phase.global_batch_size * data.tokens // (data.rows * cluster.world_size)
        budget = planned_budget(cluster.gpu, share=share, floor=data.max_seq_length, total_gib_of=totals)
        if budget is None:
            least = min(tokens for tokens in totals if tokens >= data.max_seq_length)
            raise ConfigError(
                f"micro_batch_tokens: {least:,} tokens take {totals[least]:.0f} GiB, the GPU has "
                f"{cluster.gpu.memory_gib:.0f}. Take --activation_checkpointing true, a higher stage (--engine zero3), "
                "more GPUs or a smaller model."
            )
        budgets.append(budget)
    return max(budgets)
