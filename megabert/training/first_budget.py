"""The token budget that the search for the largest tries first. Plans use it as well, so nothing here imports torch."""

START_TOKENS = {"cuda": 131_072, "cpu": 8_192}
"""First try for each device. A CPU reports no lack of memory to search by, and gains nothing above this."""


def first_budget(device: str, *, share: int, floor: int) -> int:
    """Return the budget that is tried first: the device's, but no larger than the share needs.

    Args:
        device: "cuda" or "cpu".
        share: Tokens that a rank has to do in a step.
        floor: The longest instance; a smaller budget cannot be.
    """
    # Halved for as long as a rank's whole share still fits into one micro-step.
    budget = START_TOKENS[device]
    while budget // 2 >= max(share, floor):
        budget //= 2
    return max(budget, floor)
