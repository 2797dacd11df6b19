from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from megabert.engine.engine import resolve_precision
from megabert.foundation.errors import ConfigError
from megabert.settings.config.loading import load_run_config
from megabert.tokens.shards.folder import InstanceStatistics
from megabert.training import micro_batch_size
from megabert.training.first_budget import START_TOKENS
from megabert.training.micro_batch_size import choose_micro_batch_tokens, find_micro_batch_tokens
from megabert.training.state import MicroBatchTokens

WORLD = SimpleNamespace(device=torch.device("cpu"), gather=lambda value: [value])


def limited_to(tokens: int, tried: list[int]):
    def attempt(budget: int) -> None:
        tried.append(budget)
        if budget > tokens:
            raise torch.OutOfMemoryError

    return attempt


def test_budget_is_halved_until_it_fits():
    tried: list[int] = []
    budget = find_micro_batch_tokens(limited_to(3000, tried), share=10**9, floor=128, world=WORLD)
    assert budget == START_TOKENS["cpu"] // 4
    assert tried == [START_TOKENS["cpu"] // n for n in (1, 2, 4)]


def test_one_instance_that_does_not_fit_names_the_remedies():
    with pytest.raises(ConfigError, match="activation_checkpointing"):
        find_micro_batch_tokens(limited_to(100, []), share=10**9, floor=128, world=WORLD)


def test_all_ranks_take_the_smallest_budget():
    answers = iter([[True, False], [True, True]])
    world = SimpleNamespace(device=torch.device("cpu"), gather=lambda value: next(answers))
    assert find_micro_batch_tokens(limited_to(10**9, []), share=10**9, floor=128, world=world) == 4096


def inputs_of(masked: int) -> SimpleNamespace:
    """A run of two phases over shards of 16 and 128 tokens with static masks."""
    config = replace(load_run_config("debug", flags={"precision": "fp32"}), micro_batch_tokens="auto")
    data = [
        InstanceStatistics(rows=10, tokens=1000, masked_tokens=masked, max_seq_length=length, max_masked=20)
        for length in (16, 128)
    ]
    return SimpleNamespace(config=config, statistics=data, zero_stage=1)


@pytest.fixture
def shares(monkeypatch):
    """The shares of masked tokens of the micro-steps that are tried."""
    shares = []

    def attempt(model, inputs, world, data, phase, tokens):
        shares.append(data.masked_tokens / data.tokens)

    monkeypatch.setattr(micro_batch_size, "_try_micro_step", attempt)
    return shares


def test_as_many_tokens_are_masked_as_the_shards_hold_and_other_shards_ask_again(shares):
    world = SimpleNamespace(size=1, **vars(WORLD))
    stored = choose_micro_batch_tokens(None, inputs_of(384), stored=MicroBatchTokens(tokens=()), world=world)
    assert shares == [0.384, 0.384]
    assert choose_micro_batch_tokens(None, inputs_of(384), stored=stored, world=world) is stored
    choose_micro_batch_tokens(None, inputs_of(150), stored=stored, world=world)
    assert shares[2:] == [0.15, 0.15]


def test_ranks_on_different_gpus_resume_with_the_same_budgets(shares):
    """A rank sees the name of its own GPU, and after a requeue other ranks may have it."""

    def choose(stored: MicroBatchTokens, *gpus: str) -> MicroBatchTokens:
        def gather(value):
            return [value.replace("cpu", gpu) for gpu in gpus] if isinstance(value, str) else [value] * 2

        world = SimpleNamespace(device=torch.device("cpu"), size=2, gather=gather)
        return choose_micro_batch_tokens(None, inputs_of(150), stored=stored, world=world)

    stored = choose(MicroBatchTokens(tokens=()), "40GB", "80GB")
    assert choose(stored, "80GB", "40GB") is stored
    assert choose(stored, "80GB", "80GB") is not stored


@pytest.mark.parametrize(("is_in_hardware", "precision"), [(True, "bf16"), (False, "fp16")])
def test_auto_takes_bf16_only_from_a_gpu_that_does_not_emulate_it(is_in_hardware, precision, monkeypatch):
    monkeypatch.setattr(
        "torch.cuda.is_bf16_supported", lambda including_emulation=True: including_emulation or is_in_hardware
    )
    assert resolve_precision("auto", torch.device("cuda")) == precision
