"""A toy model with awkward sizes, and training it through the engine on any stage and world size."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from megabert.engine.engine import Engine, build_engine
from megabert.models.layers import Dense
from megabert.optim import StepSettings, build_optimizer
from megabert.settings.config.run import OptimizerConfig

ENGINES = {
    "zero0": (0, "fp32"),
    "zero1": (1, "fp32"),
    "zero2": (2, "fp32"),
    "zero3": (3, "fp32"),
    "bf16_zero1": (1, "bf16"),  # BF16_Optimizer
    "bf16_zero2": (2, "bf16"),
    "bf16_zero3": (3, "bf16"),
    "fp16_zero1": (1, "fp16"),
    "fp16_zero2": (2, "fp16"),
    "fp16_zero3": (3, "fp16"),
}
INSTANCES, TOKENS, VOCABULARY = 12, 7, 400
LEARNING_RATE = 0.01


@dataclass
class ToyOutput:
    """A dataclass, as the real model returns: DeepSpeed does not look inside."""

    loss_sum: Tensor
    hidden_TD: Tensor


class Toy(nn.Module):
    """Sizes that divide by nothing; one parameter over three ranks; some smaller than the world; a tied weight."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.pair = nn.Parameter(torch.randn(1, 2))  # two elements, with decay
        self.embedding = nn.Embedding(VOCABULARY, 31)  # 12,400 of 16,600 elements
        self.dense = Dense(31, 67)
        self.LayerNorm = nn.LayerNorm(67)
        self.out = Dense(67, 31)
        self.decoder = Dense(31, VOCABULARY)
        self.decoder.weight = self.embedding.weight
        self.gain_bias = nn.Parameter(torch.ones(1))  # one element, without decay

    def forward(self, ids: Tensor, targets: Tensor) -> ToyOutput:
        hidden = self.embedding(ids.reshape(-1)) * self.pair.sum()
        hidden = self.out(nn.functional.gelu(self.LayerNorm(self.dense(hidden)))) * self.gain_bias
        logits = self.decoder(hidden).float()
        return ToyOutput(nn.functional.cross_entropy(logits, targets.reshape(-1), reduction="sum"), hidden)


def batch_of(step: int) -> tuple[Tensor, Tensor]:
    """The global batch of a step: the same for every world size."""
    generator = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(0, VOCABULARY, (INSTANCES, TOKENS), generator=generator)
    return ids, (ids * 7 + 3) % VOCABULARY


def ds_config(stage: int, precision: str, clip: float = 1.0, **zero) -> dict:
    """A complete DeepSpeed dict, as ``megabert.settings.config.deepspeed`` derives it."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": clip,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16", "initial_scale_power": 8, "loss_scale_window": 4, "hysteresis": 1},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "steps_per_print": 1_000_000_000,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 9_999,  # smaller than the embedding
            "allgather_bucket_size": 10_000,
            "stage3_prefetch_bucket_size": 5_000,
            "stage3_param_persistence_threshold": 100,
            "sub_group_size": 5_000,
            **zero,
        },
    }


MATRICES = {"embedding.weight": 1, "dense.weight": 1, "out.weight": 1}
"""What Muon orthogonalises of the toy: the first lies on every rank."""


def make_engine(
    world,
    engine: str,
    *,
    optimizer: str = "lamb",
    variant: str = "nvlamb",
    clip: float = 1.0,
    matrices: dict[str, int] = MATRICES,
    **fields,
) -> Engine:
    """A fresh toy in a fresh engine; its one-element parameter is a group of its own: other ranks' shards are empty."""
    stage, precision = ENGINES[engine]
    model = Toy()
    config = OptimizerConfig(name=optimizer, lamb_variant=variant, weight_decay=0.01, **fields)
    inner = build_optimizer(model.named_parameters(), config, matrices=matrices)
    without_decay = inner.param_groups[1]
    without_decay["params"] = [p for p in without_decay["params"] if p is not model.gain_bias]
    inner.add_param_group({"params": [model.gain_bias], "weight_decay": 0.0})
    return build_engine(model, inner, ds_config(stage, precision, clip), world)


def train_step(engine: Engine, world, step: int, *, micro_steps: int = 1, lr: float = LEARNING_RATE) -> float:
    """One step over the global batch: instances dealt to ranks and micro-steps as they come; the mean loss."""
    ids, targets = batch_of(step)
    total = torch.zeros((), dtype=torch.float64)
    for micro_step in range(micro_steps):
        rows = slice(micro_step * world.size + world.rank, None, micro_steps * world.size)
        loss = engine.forward(ids[rows], targets[rows]).loss_sum
        total += loss.detach().double()
        engine.backward(loss * (world.size / ids.numel()), is_last=micro_step == micro_steps - 1)
    outcome = engine.step(StepSettings(lr=lr, bias_step=step), total.view(1))
    assert outcome.grad_norm is not None
    return float(outcome.totals[0]) / ids.numel()


def given_gradients(engine: Engine, settings: StepSettings) -> dict[tuple[str, int], Tensor]:
    """Return the gradients that the optimizer is handed, by parameter and start of each fragment."""
    groups = engine.optimizer.param_groups
    flats = {id(flat) for group in groups for flat in group["params"] if flat.grad is not None}
    return {
        (fragment.parameter, fragment.start): fragment.view(fragment.flat.grad) * settings.gradient_scale
        for fragment in engine.fragments
        if id(fragment.flat) in flats
    }


def whole_masters(engine: Engine, world) -> dict[str, Tensor]:
    """Every parameter's whole float32 master, gathered from all ranks."""
    return gather_whole(engine, world, lambda fragment: fragment.view())


def gather_whole(engine: Engine, world, values_of) -> dict[str, Tensor]:
    """Gather ``values_of(fragment)`` from all ranks into whole parameters, in float64."""
    whole = {name: torch.zeros(shape.numel(), dtype=torch.float64) for name, shape in engine.shapes.items()}
    for fragment in engine.fragments:
        whole[fragment.parameter][fragment.start : fragment.start + fragment.numel] += values_of(fragment).double()
    if not engine.is_replicated:
        for tensor in whole.values():
            dist.all_reduce(tensor, group=world.control)
    return whole


def loss_of(engine) -> float:
    with engine.evaluating():
        return float(engine.forward(*batch_of(1)).loss_sum)
