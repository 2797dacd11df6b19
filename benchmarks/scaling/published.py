"""Published strong-scaling tables, and how far `megabert.planning.step_time` is from them when fitted on one point.

A strong-scaling table gives the seconds of the same work on more and more GPUs. The model has one free number, the
share of the peak while computing; it is fitted on one point of a table, and all the others are predictions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from megabert.config.model import ModelConfig
from megabert.observability.flops import training_flops
from megabert.observability.gpus import GPUS
from megabert.planning.step_time import Cluster, Communication, Work, step_time

BERT_LARGE = ModelConfig(preset="large", vocab_size=30_522)
BERT_LARGE_PARAMETERS = 336_232_258
"""BertForPreTraining with tied embeddings; the vocabulary is padded to 30,528 in theirs as in ours."""
MASKED_PER_SEQUENCE = {128: 20, 512: 80}
"""max_predictions_per_seq of both systems."""


@dataclass(frozen=True, kw_only=True)
class PublishedPhase:
    """Steps of one sequence length."""

    max_seq_length: int
    global_batch_size: int
    micro_batch_size: int
    """Sequences a GPU in one micro-step, at most."""
    steps: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Published:
    """One published table: seconds of the same work on more and more GPUs."""

    name: str
    gpu: str
    phases: tuple[PublishedPhase, ...]
    seconds: dict[int, float]
    """GPUs -> seconds of all phases."""
    communication: Communication
    source: str


def _nvidia(length: int, batch: int, micro_batch: int, sequences_per_s: dict[int, float]) -> Published:
    return Published(
        name=f"NVIDIA BERT-Large, {length}",
        gpu="a100",
        phases=(PublishedPhase(max_seq_length=length, global_batch_size=batch, micro_batch_size=micro_batch),),
        seconds={gpus: batch / rate for gpus, rate in sequences_per_s.items()},
        # Native DDP under autocast: float32 gradients, sent behind the last backward pass; LAMB on every GPU.
        communication=Communication(all_reduce_bytes=4, is_overlapped=True),
        source="NVIDIA/DeepLearningExamples, PyTorch/LanguageModeling/BERT/README.md, "
        "'Pre-training NVIDIA DGX A100 (8x A100 80GB) Multi-node Scaling', mixed precision",
    )


DEEPSPEED = Published(
    name="DeepSpeed BERT-Large, both phases",
    gpu="v100",
    phases=(
        # 403 million samples, and 18 to 22 million.
        PublishedPhase(max_seq_length=128, global_batch_size=65_536, micro_batch_size=64, steps=403e6 / 65_536),
        PublishedPhase(max_seq_length=512, global_batch_size=32_768, micro_batch_size=8, steps=20e6 / 32_768),
    ),
    seconds={16: 60 * (33 * 60 + 13), 64: 60 * (8 * 60 + 41), 256: 60 * 144, 1024: 60 * 44},
    # fp16 gradients, all-reduced after the last backward pass; no ZeRO.
    communication=Communication(all_reduce_bytes=2),
    source="deepspeedai/DeepSpeed, docs/_tutorials/bert-pretraining.md and "
    "docs/_posts/2020-05-28-fastest-bert-training.md (DGX-2 nodes)",
)
NVIDIA_128 = _nvidia(128, 65_536, 256, {8: 4553, 16: 9191, 32: 18119, 64: 35774, 128: 70555, 256: 138294})
NVIDIA_512 = _nvidia(512, 32_768, 32, {8: 1648, 16: 3291, 32: 6464, 64: 13005, 128: 25570, 256: 49663})
PUBLISHED = (DEEPSPEED, NVIDIA_128, NVIDIA_512)


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
            _work(phase, gpus),
            cluster,
            system.communication,
            efficiency=efficiency,
            precision="fp16",
        ).total_s
        for phase in system.phases
    )


def _work(phase: PublishedPhase, gpus: int) -> Work:
    """Return a step's work; full sequences, as both systems pad them. Their loaders are not modelled."""
    length, batch = phase.max_seq_length, phase.global_batch_size
    flops = training_flops(
        BERT_LARGE,
        tokens=batch * length,
        squared_lengths=batch * length**2,
        masked=batch * MASKED_PER_SEQUENCE[length],
    )
    micro_steps = max(1, round(batch / gpus / phase.micro_batch_size))
    return Work(parameters=BERT_LARGE_PARAMETERS, flops=flops, micro_steps=micro_steps)
