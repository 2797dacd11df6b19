"""The token budget of a micro-step: ``micro_batch_tokens: auto`` finds the largest that fits, once."""

from collections.abc import Callable

import torch

from megabert.distributed.process_group import World
from megabert.observability.logs import logger

START_TOKENS = {"cuda": 131_072, "cpu": 8_192}
"""First try by device; a CPU has no out-of-memory error to probe with, and gains nothing above this."""


def find_micro_batch_tokens(attempt: Callable[[int], None], *, share: int, floor: int, world: World) -> int:
    """Return the largest power-of-two budget, from the device's first try downwards, that every rank can hold.

    The budget changes how a batch is divided into micro-steps and nothing else: losses stay equal.

    Args:
        attempt: Runs a forward and backward pass of that many tokens; raises ``torch.OutOfMemoryError``.
        share: Tokens that a rank has to do in a step: no budget needs to be larger.
        floor: The longest instance; a smaller budget cannot be.
        world: Ranks, which take the smallest budget found on any of them.

    Raises:
        torch.OutOfMemoryError: One instance of full length does not fit either.
    """
    budget = START_TOKENS[world.device.type]
    while budget // 2 >= max(share, floor):
        budget //= 2
    budget = max(budget, floor)
    while True:
        fits = _fits(attempt, budget, world)
        if fits:
            return budget
        if budget == floor:
            raise torch.OutOfMemoryError(
                f"one instance of {floor} tokens does not fit. Take a smaller model, shorter sequences, "
                "activation_checkpointing true, or a higher ZeRO stage."
            )
        budget = max(budget // 2, floor)
        logger.info("micro_batch_tokens: out of memory, trying %d", budget)


def _fits(attempt: Callable[[int], None], budget: int, world: World) -> bool:
    try:
        attempt(budget)
        fits = True
    except torch.OutOfMemoryError:
        fits = False
    if world.device.type == "cuda":
        torch.cuda.empty_cache()
    return all(world.gather(fits))
