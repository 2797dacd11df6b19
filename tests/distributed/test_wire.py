"""What a step sends and how often the host waits, counted: docs/distributed.md has the table."""

import counted_training
import pytest
import torch
import torch.distributed as dist
import wire

NUMBERS = 100


@pytest.mark.parametrize(
    ("engine", "bytes_a_parameter"), [("zero0", 8.1), ("zero1", 8.1), ("bf16_zero1", 6.1)]
)  # of very many ranks: of two, half
def test_step_sends_the_minimum_once_however_many_micro_steps(workers, engine, bytes_a_parameter):
    one, three = (workers(2).run(counted_training.counted_step, engine, k)[0] for k in (1, 3))
    assert 0.95 * bytes_a_parameter < three["many_ranks"] <= bytes_a_parameter
    assert three == one


@pytest.mark.parametrize("engine", ["zero1", "bf16_zero1"])
def test_zero1_scatters_gathers_and_waits_twice(workers, engine):
    figures = workers(2).run(counted_training.counted_step, engine, 2)[0]
    # Gradients and weights a bucket; norm and losses, then LAMB's squares, which depend on the clipping by that norm.
    buckets = figures["which"]["reduce_scatter"]
    assert buckets > 3
    assert figures["which"] == {"reduce_scatter": buckets, "all_gather": buckets, "allreduce": 2}
    assert figures["host_waits"] <= 2, figures["where"]


def test_world_of_one_sends_nothing(workers):
    figures = workers(1).run(counted_training.counted_step, "zero1", 2)[0]
    assert figures["which"] == {}


def test_counting_sees_collectives_and_waits(workers):
    for traffic in workers(2).run(count_known_traffic):
        assert traffic == (4 * NUMBERS * (2 * 0.5 + 0.5), 2, 1, 2)


def count_known_traffic(world):
    values = torch.ones(NUMBERS)
    with wire.counting(large_elements=NUMBERS - 1) as traffic:
        dist.all_reduce(values)
        dist.all_gather_into_tensor(values, values[: NUMBERS // 2].clone())
        copy = values.cpu()
        assert float(copy[0]) == copy[1:].tolist()[0]  # read from the copy
        assert values[0].item()
    del traffic.on_host[:]
    return traffic.wire_bytes, sum(traffic.collectives.values()), traffic.large - 1, sum(traffic.host_waits.values())
