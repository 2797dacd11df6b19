"""The same training with one collective of all ranks, and with one leg inside nodes and one across them."""

from counted_training import MODEL, batch_of_share
from toy_training import ENGINES, ds_config, gather_whole

from megabert.config.run import OptimizerConfig
from megabert.engine.build import build_engine
from megabert.models.build import build_model, initialize
from megabert.optim import build_optimizer
from megabert.training.step import train_step

STEPS = 3


def compared(world, engine_name: str, *, per_node: int, network_dtype: str) -> dict[str, float]:
    """Return how far two legs are from one: relative errors of the first step's gradient, and of later losses."""
    hierarchy = {"enabled": True, "ranks_per_node": per_node, "network_dtype": network_dtype}
    gradient, losses = _train(world, engine_name, hierarchy)
    expected_gradient, expected_losses = _train(world, engine_name, {"enabled": False})
    norm = sum(float(values.square().sum()) for values in expected_gradient.values()) ** 0.5
    difference = sum(float((gradient[name] - g).square().sum()) for name, g in expected_gradient.items()) ** 0.5
    pairs = list(zip(losses, expected_losses, strict=True))
    return {
        "gradient": difference / norm,
        "parameter": max(float((gradient[name] - g).norm() / g.norm()) for name, g in expected_gradient.items()),
        "loss": max(abs(a - b) / b for a, b in pairs),
        "learned": expected_losses[0] - expected_losses[-1],
    }


def _train(world, engine_name: str, hierarchy: dict):
    stage, precision = ENGINES[engine_name]
    model = build_model(MODEL)
    initialize(model, 3)
    optimizer = build_optimizer(model.named_parameters(), OptimizerConfig())
    config = {**ds_config(stage, precision, reduce_bucket_size=250_000), "hierarchy": hierarchy}
    engine = build_engine(model, optimizer, config, world)
    optimizer.lr = 0.02
    gradient, losses, plain_step = {}, [], optimizer.step

    def recording_step() -> None:
        if not gradient:
            gradient.update(gather_whole(engine, world, lambda fragment: fragment.view(fragment.flat.grad)))
        plain_step()

    optimizer.step = recording_step
    for _ in range(STEPS):
        # The same batch each time, two micro-steps of it: later losses show that all weights came back.
        losses.append(train_step(engine, batch_of_share(world, 0, 2), world).losses["loss"])
    return gradient, losses
