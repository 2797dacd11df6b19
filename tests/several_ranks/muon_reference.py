"""Muon in float64, parameter by parameter, written from Jordan's post and Moonlight's paper and not from our code."""

import math

import torch
from several_ranks.toy_training import MATRICES
from torch import Tensor

VARIANTS = {
    "muon": {},
    "muon_heads": {"matrices": MATRICES | {"embedding.weight": 8}, "muon_scaling": "original", "muon_adamw_ratio": 0.5},
    "muon_bf16": {"muon_dtype": "bf16"},
}
"""Settings of the toy's optimizer."""


class ReferenceMuon:
    """One step of Muon for the toy's matrices, of AdamW for everything else."""

    shortened = 0

    def __init__(self, weights: dict[str, Tensor], *, variant: str, weight_decay: float, lr: float) -> None:
        settings = VARIANTS[variant]
        self.matrices = settings.get("matrices", MATRICES)
        self.is_original, self.ratio = "muon_scaling" in settings, settings.get("muon_adamw_ratio", 1.0)
        self.weights = {name: weight.double().clone() for name, weight in weights.items()}
        self.m = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.v = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.weight_decay, self.lr, self.t = weight_decay, lr, 0

    def step(self, gradients: dict[str, Tensor]) -> None:
        self.t += 1
        for name, weight in self.weights.items():
            gradient = gradients[name].double()
            if name in self.matrices:
                self._orthogonal_step(name, weight, gradient)
                continue
            m = self.m[name].mul_(0.9).add_(gradient, alpha=0.1) / (1 - 0.9**self.t)
            v = self.v[name].mul_(0.999).add_(gradient**2, alpha=0.001) / (1 - 0.999**self.t)
            excluded = name.endswith("bias") or "LayerNorm" in name
            decay = 0.0 if excluded else self.weight_decay
            weight.sub_(m / (v.sqrt() + 1e-6) + decay * weight, alpha=self.lr * self.ratio)

    def _orthogonal_step(self, name: str, weight: Tensor, gradient: Tensor) -> None:
        m = self.m[name].mul_(0.95).add_(gradient, alpha=0.05)
        ahead, columns = (
            0.05 * gradient + 0.95 * m,
            {"embedding.weight": 31, "dense.weight": 31, "out.weight": 67}[name],
        )
        weight.mul_(1 - self.lr * self.weight_decay)
        by_head = (whole.view(-1, columns).chunk(self.matrices[name]) for whole in (weight, ahead))
        for rows, update in zip(*by_head, strict=True):
            x = update / (update.norm() + 1e-7)
            for _ in range(5):  # the products of the smaller side, or of the larger one: the same polynomial
                gram = x.T @ x if x.shape[0] > x.shape[1] else x @ x.T
                factor = 3.4445 * torch.eye(len(gram), dtype=torch.float64) - 4.7750 * gram + 2.0315 * gram @ gram
                x = x @ factor if x.shape[0] > x.shape[1] else factor @ x
            a, b = x.shape
            rows.sub_(x, alpha=self.lr * (math.sqrt(max(1, a / b)) if self.is_original else 0.2 * math.sqrt(max(a, b))))
