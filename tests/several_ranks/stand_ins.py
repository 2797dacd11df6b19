"""A world of one and an engine without DeepSpeed, for checkpoints."""

from types import SimpleNamespace

import torch

from megabert.optim import Fragment

ALONE = SimpleNamespace(
    rank=0, size=1, is_main=True, device=torch.device("cpu"), gather=lambda value: [value], in_background=lambda: ALONE
)


class StandInEngine:
    """What a checkpoint asks of an engine, without DeepSpeed."""

    zero_stage, is_replicated, average = 1, False, None

    def __init__(self, numel: int = 1000) -> None:
        self.flat = torch.arange(numel + 3, dtype=torch.float32)
        self.moments = torch.rand(numel + 3), torch.rand(numel + 3)
        self.shapes = {"weight": torch.Size([numel // 10, 10])}
        self.fragments = [Fragment(self.flat, 3, "weight", 0, numel)]
        self.optimizer = SimpleNamespace(moments=lambda flat: self.moments, state_names=("exp_avg", "exp_avg_sq"))

    def state(self) -> dict:
        return {}

    def load_state(self, state: dict) -> None:
        pass

    def refresh(self) -> None:
        pass
