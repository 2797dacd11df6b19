"""``python -m integration.programs.infinite``: megabert whose embeddings have an infinity in one batch.

The batch has instances 8 to 11 of epoch 0 in phase 1, whose batches have 4 instances. After each batch the casts of
weights that are kept, if there are any, must have finite scales; their number is printed.
"""

from contextlib import nullcontext

from integration.programs.instead import run_megabert

STOP, SIZE = 12, 4


def put_infinity(module, inputs, hidden_TD):
    spoiled_TD = hidden_TD.clone()
    spoiled_TD[0, 0] = float("inf")
    return spoiled_TD


def spoil(accumulate, engine, batch, world):
    stop = max(part.stop for parts in batch.ranges.values() for part in parts)
    is_bad = batch.num_instances == SIZE and stop == STOP
    embeddings = engine.module.bert.embeddings
    with embeddings.register_forward_hook(put_infinity) if is_bad else nullcontext():
        sums = accumulate(engine, batch, world)
    casts = [cast for weight in engine.module.parameters() for cast in getattr(weight, "kept_casts", {}).values()]
    for values, scales in casts:
        assert (values.float() * scales).isfinite().all()
        assert (scales > 0).all()
    print(f"{len(casts)} casts of weights")
    return sums


if __name__ == "__main__":
    run_megabert(accumulate=spoil)
