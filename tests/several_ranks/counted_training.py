"""The trainer's own step on a small BERT, counted: bytes and collectives of a step in the steady state."""

from collections import Counter
from types import SimpleNamespace

from several_ranks.test_engine_bert import micro_batch
from several_ranks.toy_training import ENGINES, ds_config
from several_ranks.wire import counting
from support.tiny_models import tiny_config

from megabert.engine.engine import build_engine
from megabert.models.build import build_model, initialize
from megabert.optim import StepSettings, build_optimizer
from megabert.settings.config.run import OptimizerConfig
from megabert.training.step import accumulate, update

MODEL = tiny_config(vocab_size=1000, hidden_size=96, num_hidden_layers=6, intermediate_size=384)
BUCKETS = {"reduce_bucket_size": 250_000, "allgather_bucket_size": 250_000, "stage3_prefetch_bucket_size": 250_000}
ALIASES = {"reduce_scatter_single": "reduce_scatter", "all_gather_single": "all_gather", "allgather": "all_gather"}
SETTINGS = StepSettings(lr=1e-3)
WARM_UP = 3  # steps; DeepSpeed's stage 3 traces the model in its first ones


def counted_step(world, engine_name: str, micro_steps: int) -> dict[str, float]:
    """Train a few steps and return the figures of one more, a parameter where they are bytes."""
    stage, precision = ENGINES[engine_name]
    model = build_model(MODEL)
    initialize(model, 3)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig())
    config = ds_config(stage, precision, **BUCKETS)
    engine = build_engine(model, optimizer, config, world)
    for step in range(WARM_UP):
        batch = batch_of_share(world, step, micro_steps)
        update(engine, batch, accumulate(engine, batch, world), SETTINGS, world)
    with counting(large_elements=parameters // 100) as traffic:
        batch = batch_of_share(world, WARM_UP, micro_steps)
        result = update(engine, batch, accumulate(engine, batch, world), SETTINGS, world)
    assert not result.is_skipped
    ring = (world.size - 1) / world.size
    return {
        "bytes": traffic.wire_bytes / parameters,
        "many_ranks": traffic.wire_bytes / parameters / ring if ring else 0.0,
        "collectives": sum(traffic.collectives.values()),
        "large": traffic.large,
        # Torch has changed the names of the methods, not what they do.
        "which": dict(Counter(ALIASES.get(name, name) for name in traffic.collectives.elements())),
    }


def batch_of_share(world, step: int, micro_steps: int) -> SimpleNamespace:
    """Return this rank's micro-batches of a step, as the loader would."""
    # Instances are longer the higher their number; the sixth is as long as the model allows.
    shares = [(micro_step % 6, (micro_step + 1 + world.rank) % 6) for micro_step in range(micro_steps)]
    batches = [micro_batch(step, share) for share in shares]
    instances = sum(len(share) for share in shares) * world.size
    return SimpleNamespace(micro_batches=batches, num_masked=3 * instances, num_instances=instances, num_tokens=1)
