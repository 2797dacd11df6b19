"""``prove_ops`` on two ranks: one has the wrong kernel or another file, and both do the same."""

import json
import os
from unittest import mock

import pytest
import torch

from megabert.foundation.errors import MegabertError
from megabert.ops.backend import BACKENDS, Backend, choose, forget_disproved, no_obstacle, usable_backends
from megabert.ops.bias_gelu.cpu import bias_gelu_torch
from megabert.ops.triton_support import tuned_tiles
from megabert.settings.config.model import ModelConfig
from megabert.settings.config.run import OpsConfig
from megabert.training.proven_ops import prove_ops

CPU = torch.device("cpu")
MODEL = ModelConfig(vocab_size=90, hidden_size=32, num_attention_heads=2, intermediate_size=48, family="bert")


def proof_with_a_wrong_kernel_on_rank_1(world, folder, unproven):
    def wrong(x_TF, bias_F, *, approximate):
        return bias_gelu_torch(x_TF, bias_F, approximate=approximate) * (1.0 + 0.01 * world.rank)

    return proof_with(Backend("planted", wrong, no_obstacle), world, folder, unproven)


def proof_with_a_kernel_that_rank_1_cannot_run(world, folder, unproven):
    obstacle = {0: None, 1: "Triton needs a C compiler"}[world.rank]
    return proof_with(Backend("planted", bias_gelu_torch, lambda device: obstacle), world, folder, unproven)


def proof_with(planted, world, folder, unproven):
    try:
        with mock.patch.dict(BACKENDS, bias_gelu=(planted, *BACKENDS["bias_gelu"])):
            return outcome(world, folder, OpsConfig(unproven=unproven))
    finally:
        forget_disproved()


def outcome(world, folder, ops):
    """Return the sentences and what runs then, or the error; and that the ranks still meet."""
    os.environ["XDG_CACHE_HOME"] = str(folder / str(world.rank))
    choose.cache_clear()
    try:
        sentences = prove_ops(MODEL, ops, world, lengths=[16], precision="fp32", has_lamb=False)
        result = (sentences, usable_backends("bias_gelu", "cpu")[0])
    except MegabertError as error:
        result = str(error)
    finally:
        tuned_tiles.use({})
        del os.environ["XDG_CACHE_HOME"]
    assert world.gather(world.rank) == [0, 1]
    return result


def proof_with_files(world, folder, contents):
    """Each rank reads a file of its own, as two nodes do; None: it is not there."""
    path = folder / f"node{world.rank}" / "tiles.json"
    path.parent.mkdir()
    if contents[world.rank] is not None:
        path.write_text(json.dumps(tuned_tiles.identity(CPU) | {"tiles": contents[world.rank]}))
    return outcome(world, folder, OpsConfig(tile_sizes=str(path)))


def test_a_kernel_that_is_wrong_on_one_rank_is_replaced_on_both(workers, tmp_path):
    first, second = workers(2).run(proof_with_a_wrong_kernel_on_rank_1, tmp_path, "fallback")
    assert first == second
    (sentence,), running = first
    assert running == "torch"
    assert sentence.startswith("ops.bias_gelu: torch takes the place")
    assert sentence.endswith("on rank 1")


@pytest.mark.parametrize("unproven", ["fallback", "trust"])
def test_a_kernel_that_cannot_run_on_one_rank_runs_on_none(workers, tmp_path, unproven):
    first, second = workers(2).run(proof_with_a_kernel_that_rank_1_cannot_run, tmp_path, unproven)
    sentence = (
        "ops.bias_gelu: torch takes the place of planted, which cannot run everywhere: "
        "Triton needs a C compiler, on rank 1"
    )
    assert first == second == ((sentence,), "torch")


TILES = {"bias_gelu 48": (8, 256, 4, 1)}


@pytest.mark.parametrize(
    ("contents", "message"),
    [(({}, TILES), "ranks read different files of that name"), (({}, None), "tiles.json")],
    ids=["different", "missing on one"],
)
def test_files_of_tile_sizes_that_differ_are_refused_on_both_ranks(workers, tmp_path, contents, message):
    for refusal in workers(2).run(proof_with_files, tmp_path, contents):
        assert isinstance(refusal, str)
        assert message in refusal


def test_equal_files_of_tile_sizes_are_taken(workers, tmp_path):
    assert workers(2).run(proof_with_files, tmp_path, (TILES, TILES)) == [((), "torch")] * 2
