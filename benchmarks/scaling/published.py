"""Published strong-scaling tables, and how far `planning.step_time` is from them when fitted on one point.

A strong-scaling table gives the seconds of the same work on more and more GPUs. The model has one free number, the
share of the peak while computing; it is fitted on one point of a table, and all the others are predictions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from megabert.observability.flops import GPUS, training_flops
from megabert.settings.config.model import ModelConfig
from megabert.tooling.planning.step_time import Cluster, Communication, StepWork, datasheet_rates, step_time

BERT_LARGE = ModelConfig(preset="large", vocab_size=30_522)
BERT_LARGE_PARAMETERS = 336_232_258
"""BertForPreTraining with tied embeddings; the vocabulary is padded to 30,528 in theirs as in ours."""
PASS_BYTES = 44
"""Bytes a parameter of passes over the whole gradient: flattened 8, scaled 8, copied back 8, norm 4, clipped 8, cleared
4, checked 4. Counted of DeepSpeed 0.19.8's BF16_Optimizer, and assumed of every published system."""


@dataclass(frozen=True, kw_only=True)
class PublishedPhase:
    """Steps of one sequence length."""

    max_seq_length: int
    global_batch_size: int
    micro_batch_size: int
    """Sequences a GPU in one micro-step, at most."""
    steps: float = 1.0
    mean_length: float | None = None
    """Real tokens of a sequence, where padding is not computed; without it all are full."""
    squared_per_token: float | None = None
    """Sum of squared lengths over sum of lengths, which is what attention sees."""
    predictions: int = 0
    """Masked positions of a sequence that the head computes."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published table: seconds of the same work on more and more GPUs, or of a step of another batch on each."""

    name: str
    gpu: str
    phases: tuple[PublishedPhase, ...]
    seconds: dict[int, float]
    """GPUs -> seconds of all phases."""
    communication: Communication
    source: str
    batches: Mapping[int, int] = field(default_factory=dict)
    """GPUs -> global batch, where it is not the phase's."""


def _nvidia(length: int, batch: int, micro_batch: int, sequences_per_s: dict[int, float]) -> Published:
    return Published(
        name=f"NVIDIA BERT-Large, {length}",
        gpu="a100",
        phases=(
            PublishedPhase(
                max_seq_length=length,
                global_batch_size=batch,
                micro_batch_size=micro_batch,
                predictions={128: 20, 512: 80}[length],
            ),
        ),
        seconds={gpus: batch / rate for gpus, rate in sequences_per_s.items()},
        # Native DDP under autocast: float32 gradients, sent after the last backward pass; LAMB on every GPU.
        communication=Communication(all_reduce_bytes=4, is_overlapped=True, pass_bytes=PASS_BYTES),
        source="NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/BERT/README.md, "
        "'Pre-training NVIDIA DGX A100 (8x A100 80GB) Multi-node Scaling', mixed precision",
    )


DEEPSPEED = Published(
    name="DeepSpeed BERT-Large, both phases",
    gpu="v100",
    phases=(
        # 403 million samples, and 18 to 22 million.
        PublishedPhase(
            max_seq_length=128, global_batch_size=65_536, micro_batch_size=64, steps=403e6 / 65_536, predictions=20
        ),
        PublishedPhase(
            max_seq_length=512, global_batch_size=32_768, micro_batch_size=8, steps=20e6 / 32_768, predictions=80
        ),
    ),
    seconds={16: 60 * (33 * 60 + 13), 64: 60 * (8 * 60 + 41), 256: 60 * 144, 1024: 60 * 44},
    # fp16 gradients, all-reduced after the last backward pass; no ZeRO.
    communication=Communication(all_reduce_bytes=2, pass_bytes=PASS_BYTES),
    source="deepspeedai/DeepSpeed, docs/_tutorials/bert-pretraining.md and "
    "docs/_posts/2020-05-28-fastest-bert-training.md (DGX-2 nodes)",
)
NVIDIA_128 = _nvidia(128, 65_536, 256, {8: 4553, 16: 9191, 32: 18119, 64: 35774, 128: 70555, 256: 138294})
NVIDIA_512 = _nvidia(512, 32_768, 32, {8: 1648, 16: 3291, 32: 6464, 64: 13005, 128: 25570, 256: 49663})
MLPERF_TOKENS = 254.5
"""Real tokens of an MLPerf sequence: packed in rows of 512, at most 2.012 of them fill a row."""
_MLPERF_RATES = {8: 8159.1, 16: 13_513.6, 32: 26_767.1, 64: 56_876.8}
_MLPERF_BATCHES = {8: 768, 16: 768, 32: 1536, 64: 4608}
MLPERF = Published(
    name="MLPerf Training v5.0, BERT-Large",
    gpu="h200",
    phases=(
        PublishedPhase(
            max_seq_length=512,
            global_batch_size=768,
            micro_batch_size=96,
            mean_length=MLPERF_TOKENS,
            squared_per_token=2 / 3 * 512,  # lengths taken to be spread evenly up to 512
            predictions=round(0.15 * MLPERF_TOKENS),
        ),
    ),
    seconds={gpus: _MLPERF_BATCHES[gpus] / rate for gpus, rate in _MLPERF_RATES.items()},
    # DistributedFusedLAMB with overlap_reductions=False: fp16 gradients scattered, fp16 weights gathered, in sight.
    communication=Communication(
        reduce_scatter_bytes=2, all_gather_bytes=2, is_optimizer_sharded=True, pass_bytes=PASS_BYTES
    ),
    source="mlcommons/training_results_v5.0: HPE, 1, 2 and 4 Cray XD670, and Oracle, 8 BM.GPU.H200.8; means of the "
    "'throughput' that all runs logged",
    batches=_MLPERF_BATCHES,
)
PUBLISHED = (DEEPSPEED, NVIDIA_128, NVIDIA_512, MLPERF)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The model's prediction of one published figure."""

    gpus: int
    published_s: float
    predicted_s: float
    is_fitted: bool

    @property
    def error_pct(self) -> float:
        """Positive where the model is too slow."""
        return 100 * (self.predicted_s / self.published_s - 1)


def predict(system: Published, *, fitted_on: int | None = None) -> tuple[float, list[Prediction]]:
    """Fit the efficiency on one point of a table and predict the others.

    Args:
        system: The table.
        fitted_on: GPUs of the point; the smallest by default, which is what a team can measure first.

    Returns:
        The fitted efficiency, and a prediction for every point.
    """
    point = min(system.seconds) if fitted_on is None else fitted_on
    efficiency = _fit(system, point)
    predictions = [
        Prediction(
            gpus=gpus,
            published_s=seconds,
            predicted_s=_seconds(system, gpus, efficiency),
            is_fitted=gpus == point,
        )
        for gpus, seconds in system.seconds.items()
    ]
    return efficiency, predictions


def worst_error_pct(predictions: Sequence[Prediction]) -> float:
    """Return the error of largest size over the points that were predicted."""
    return max((p.error_pct for p in predictions if not p.is_fitted), key=abs)


def _fit(system: Published, gpus: int) -> float:
    """Return the efficiency at which the model meets one point; the seconds fall as it rises."""
    low, high = 0.01, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _seconds(system, gpus, middle) > system.seconds[gpus]:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _seconds(system: Published, gpus: int, efficiency: float) -> float:
    gpu = GPUS[system.gpu]
    per_node = min(gpus, gpu.gpus_per_node)
    cluster = Cluster(gpu=gpu, nodes=gpus // per_node, gpus_per_node=per_node)
    return sum(
        phase.steps
        * step_time(
            _work(phase, gpus, system.batches.get(gpus, phase.global_batch_size)),
            cluster,
            system.communication,
            datasheet_rates(cluster, efficiency=efficiency, precision="fp16"),
        ).total_s
        for phase in system.phases
    )


def _work(phase: PublishedPhase, gpus: int, batch: int) -> StepWork:
    """Return a step's work. The systems' loaders are not modelled."""
    tokens = batch * (phase.mean_length or phase.max_seq_length)
    flops = training_flops(
        BERT_LARGE,
        tokens=round(tokens),
        squared_lengths=round(tokens * (phase.squared_per_token or phase.max_seq_length)),
        masked=batch * phase.predictions,
    )
    micro_steps = max(1, round(batch / gpus / phase.micro_batch_size))
    return StepWork(parameters=BERT_LARGE_PARAMETERS, flops=flops, micro_steps=micro_steps)
