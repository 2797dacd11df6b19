"""The seconds of a step, against what follows from a datasheet by hand."""

from dataclasses import replace

import pytest

from megabert.observability.flops import GPUS
from megabert.tooling.planning import step_time

H200 = step_time.Cluster(gpu=GPUS["h200"], nodes=8, gpus_per_node=8)


def seconds(work: step_time.StepWork, communication: step_time.Communication, cluster: step_time.Cluster = H200):
    rates = step_time.datasheet_rates(cluster, efficiency=0.5, precision="bf16")
    return step_time.step_time(work, cluster, communication, rates)


WORK = step_time.StepWork(parameters=336_000_000, flops=1e16, micro_steps=4)


def test_one_gpu_computes_and_sends_nothing():
    alone = step_time.Cluster(gpu=GPUS["h200"], nodes=1, gpus_per_node=1)
    step = seconds(WORK, step_time.Communication(all_reduce_bytes=4), alone)
    assert step.communication_s == 0
    assert step.compute_s == pytest.approx(1e16 / (989e12 * 0.5))


def test_ring_of_one_node_takes_the_time_of_its_links():
    node = step_time.Cluster(gpu=GPUS["h200"], nodes=1, gpus_per_node=8)
    step = seconds(WORK, step_time.Communication(all_reduce_bytes=4), node)
    by_hand = 2 * (336e6 * 4 * 7 / 8 / (450e9 * 0.75) + 7 * 3.4e-6)
    assert step.communication_s == pytest.approx(by_hand)


def test_reduction_in_each_micro_step_costs_as_often():
    once = seconds(WORK, step_time.Communication(reduce_scatter_bytes=4)).communication_s
    often = seconds(WORK, step_time.Communication(reduce_scatter_bytes=4, is_per_micro_step=True)).communication_s
    assert often == pytest.approx(4 * once)


def test_overlap_hides_at_most_the_backward_pass():
    step = seconds(WORK, step_time.Communication(all_reduce_bytes=4, is_overlapped=True))
    assert step.hidden_s == step.communication_s
    tiny = seconds(
        step_time.StepWork(parameters=336_000_000, flops=1e10, micro_steps=1),
        step_time.Communication(all_reduce_bytes=4, is_overlapped=True),
    )
    assert tiny.hidden_s == pytest.approx(tiny.compute_s * 2 / 3)


def test_what_is_known_last_is_not_hidden():
    scattered = step_time.Communication(
        reduce_scatter_bytes=4, all_gather_bytes=2, is_overlapped=True, is_gather_overlapped=True
    )
    step, exposed = (seconds(WORK, replace(scattered, exposed_share=share)) for share in (0.0, 0.1))
    assert step.hidden_s == pytest.approx(step.communication_s)
    assert exposed.hidden_s == pytest.approx(0.9 * exposed.communication_s)


def test_each_bucket_has_the_latency_of_the_ring():
    one, ten = (
        seconds(WORK, step_time.Communication(all_gather_bytes=2, buckets=buckets)).communication_s
        for buckets in (1, 10)
    )
    assert ten - one == pytest.approx(9 * (8 * 7 * 3.4e-6 + 7 * 14e-6))


def test_passes_over_whole_gradients_do_not_shrink_with_the_gpus():
    passing = step_time.Communication(pass_bytes=44, micro_step_pass_bytes=10)
    one, many = (
        seconds(WORK, passing, step_time.Cluster(gpu=GPUS["h200"], nodes=n, gpus_per_node=8)).passes_s for n in (1, 512)
    )
    assert one == many == pytest.approx(336e6 * (44 + 4 * 10) / (4800e9 * 0.8))


def test_slow_loader_sets_the_pace():
    work = step_time.StepWork(parameters=1000, flops=1e9, micro_steps=1, instances=65_536, tokens=8_000_000)
    step = seconds(work, step_time.Communication())
    # Every rank plans the whole batch and collects its own 64th of the tokens.
    assert step.loader_s == pytest.approx(
        65_536 * step_time.PLAN_S_PER_INSTANCE + 125_000 / step_time.LOADER_TOKENS_PER_S
    )
    assert step.total_s == step.loader_s > step.compute_s
    assert (
        seconds(replace(work, flops=1e16), step_time.Communication()).total_s > step.loader_s
    )  # after enough compute it hides
