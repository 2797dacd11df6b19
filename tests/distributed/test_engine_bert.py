"""The real model in the engine: dropout on, tied decoder, dataclass output, an empty micro-batch at the very start."""

import pytest
import torch
from toy_training import ENGINES, ds_config, gather_whole

from megabert.config.model import ModelConfig
from megabert.config.run import OptimizerConfig
from megabert.data.batch import MicroBatch
from megabert.distributed.engine import build_engine
from megabert.models.bert import BertForPreTraining
from megabert.models.initialization import initialize
from megabert.optim import build_optimizer

CONFIG = ModelConfig(
    vocab_size=300,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=40,
)
INSTANCES = 5


@pytest.fixture(scope="module")
def unsharded(workers):
    return workers(2).run(train, "zero0", False)[0]


@pytest.mark.parametrize(
    ("engine", "recompute"),
    [("zero1", False), ("zero2", False), ("zero3", False), ("zero3", True), ("bf16_zero1", False)],
)
def test_every_stage_trains_the_same_bert(workers, unsharded, engine, recompute):
    losses, weights = unsharded
    actual, actual_weights = workers(2).run(train, engine, recompute)[0]
    tolerance = 2e-2 if engine.startswith("bf16") else 1e-5
    assert actual == pytest.approx(losses, rel=tolerance)
    for name, expected in weights.items():
        assert (actual_weights[name] - expected).norm() <= tolerance * 10 * expected.norm() + 1e-6, name


def train(world, engine_name, recompute):
    stage, precision = ENGINES[engine_name]
    model = BertForPreTraining(CONFIG, activation_checkpointing=recompute)
    initialize(model, 3)
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig())
    engine = build_engine(model, optimizer, ds_config(stage, precision), world)
    optimizer.lr = 1e-2
    losses = []
    for step in range(1, 4):
        optimizer.bias_step = step
        total = 0.0
        # Micro-steps x ranks; rank 1 begins with nothing.
        for shares in (((0, 1, 2), ()), ((), (3,)), ((4,), ())):
            output = engine.forward(micro_batch(step, shares[world.rank]))
            engine.backward((output.mlm_loss_sum / (3 * INSTANCES) + output.nsp_loss_sum / INSTANCES) * world.size)
            total += float(output.mlm_loss_sum)
        assert engine.nonfinite_gradients() == []
        engine.step()
        losses.append(world.sum([total])[0])
    return losses, gather_whole(engine, world, lambda fragment: fragment.view())


def micro_batch(step: int, instances: tuple[int, ...]) -> MicroBatch:
    """The same instances whatever the packing: tokens are keyed by (step, instance)."""
    rows = [torch.Generator().manual_seed(100 * step + instance) for instance in instances]
    lengths = [12 + 5 * instance for instance in instances]
    ids = [torch.randint(0, 300, (n,), generator=row) for n, row in zip(lengths, rows, strict=True)] or [torch.zeros(1)]
    starts = [sum(lengths[:index]) for index in range(len(lengths))]
    masked = [start + offset for start in starts for offset in (2, 5, 7)] or [0]
    return MicroBatch(
        input_ids_T=torch.cat(ids).long(),
        position_ids_T=torch.cat([torch.arange(len(row)) for row in ids]),
        segment_ids_T=torch.cat([(torch.arange(len(row)) > 5).long() for row in ids]),
        cu_seqlens=torch.tensor([0, *starts[1:], sum(lengths)], dtype=torch.int32),
        masked_positions_M=torch.tensor(masked),
        masked_ids_M=torch.tensor([7] * len(masked) if instances else [-100]),
        next_sentence_label_B=torch.tensor([instance % 2 for instance in instances] or [-100]),
        instance_seeds_B=torch.tensor([31 * step + instance for instance in instances] or [0], dtype=torch.int32),
        max_seqlen=max(lengths, default=1),
        num_tokens=sum(lengths),
        num_masked=3 * len(instances),
        num_instances=len(instances),
    )
