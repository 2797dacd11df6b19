from types import SimpleNamespace

import pytest
import torch

from megabert.foundation.errors import ConfigError
from megabert.training.first_budget import START_TOKENS
from megabert.training.micro_batch_size import find_micro_batch_tokens

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
