"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/): momentum whose singular values are set to one.

The update of a matrix is the nearest (semi-)orthogonal matrix to its momentum, by a Newton-Schulz iteration. That needs
the whole matrix, and ZeRO cuts matrices wherever a rank's share ends. So each matrix has an *owner*, the rank that
holds most of its elements (among equals, the rank with the least to compute so far). The steps:

    1. every rank   momentum and look-ahead, element by element, on the pieces that it holds
    2. to owners    the look-ahead of pieces that the owner does not hold: 4 bytes per element
    3. owners       Newton-Schulz on whole matrices
    4. back         the update of the same pieces: 4 bytes per element
    5. every rank   weight decay and update of its pieces

So 8 bytes are sent for each element that is not on its matrix's owner, beyond ZeRO's own, and none for a matrix that
lies on one rank. At stages 1 and 2 a bucket is cut once less often than there are ranks; stage 3 cuts every parameter
into one part per rank. At stage 0 each rank computes all matrices and sends nothing.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from megabert.ops.sums_of_squares import sums_of_squares
from megabert.optim.adamw import AdamW
from megabert.optim.base import Fragment, StepSettings
from megabert.settings.config.run import MOMENTS, OptimizerConfig

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""The polynomial is a x + b x^3 + c x^5: KellerJordan/Muon, ``muon.py``; torch.optim.Muon has the same."""
NEWTON_SCHULZ_STEPS = 5  # as KellerJordan/Muon and torch.optim.Muon have by default
MOMENTUM = MOMENTS[:1]
"""The momentum of a matrix is kept under the name of Adam's first moment."""
SCALINGS = {
    "original": lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
    "match_rms_adamw": lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
}
"""Factor on the learning rate by a matrix's shape, under torch.optim.Muon's names: Jordan's, and Moonlight's, which
gives updates the root mean square of AdamW's, about 0.2 (Liu et al. 2025, arXiv:2502.16982, section 2.2)."""


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix of which this rank holds elements."""

    rows: int
    columns: int
    mine: Fragment
    """The elements that this rank holds; ``start`` is counted within the matrix."""
    owner: int
    held: dict[int, tuple[int, int]]
    """First element and number of elements on each rank that holds any."""


class Muon(AdamW):
    """Muon for the matrices of the layers, and AdamW with a rate of its own for everything else.

    For a matrix W of R rows and C columns with gradient G::

        M = momentum * M + (1 - momentum) * G
        U = (1 - momentum) * G + momentum * M        (Nesterov)
        X = U / (norm(U) + 1e-7), transposed if R > C; five times X = a X + (b X X^T + c (X X^T)^2) X
        W = (1 - learning_rate * weight_decay) * W - learning_rate * scaling(R, C) * X

    This is torch.optim.Muon's rule (``torch/optim/_muon.py``, 2.13), which decays by the unscaled rate as Moonlight
    does. Three things differ: Newton-Schulz computes in float32 unless ``muon_dtype`` says bf16; the norm has 1e-7
    added, as in KellerJordan/Muon, while torch takes the larger of the two; and parameters that hold several matrices
    are cut into them. By default no gradient is clipped: the length of U has no effect on X.

    The decay is subtracted, in AdamW's part too. torch multiplies by 1 - learning_rate * weight_decay, which float32
    rounds the same way in each step: 1.7e-6 of a weight after 100 steps at a rate of 0.01, 4e-7 when subtracted.
    """

    def __init__(
        self, params: Iterable[Any], config: OptimizerConfig, backend: str = "auto", *, matrices: Mapping[str, int]
    ) -> None:
        """Bind the constants.

        Args:
            params: Parameter groups; the ones of matrices have ``is_matrix``.
            config: The recipe's ``optimizer`` section.
            backend: As in `AdamW`.
            matrices: How many matrices each parameter consists of, along its rows; others are AdamW's.
        """
        super().__init__(params, config, backend)
        self._config, self._stacked = config, matrices
        self._dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[config.muon_dtype]

    def _prepare(self) -> None:
        """Work out which rank owns each matrix."""
        shapes, ranks = self.shapes, self.ranks
        self._device = self.fragments[0].flat.device if ranks is None else ranks.device
        by_name = {fragment.parameter: fragment for fragment in self.fragments}  # a rank holds one run of a parameter
        cut = [
            (name, index, shapes[name][0] // stacked, shapes[name][1])
            for name, stacked in self._stacked.items()
            for index in range(stacked)
        ]
        pieces = [
            part_within(by_name.get(name), index * rows * columns, rows * columns) for name, index, rows, columns in cut
        ]
        # For each matrix, the first element and the number of elements on every rank.
        mine = [(0, 0) if piece is None else (piece.start, piece.numel) for piece in pieces]
        table = list(zip(*([mine] if ranks is None else ranks.gather(mine)), strict=True))
        self._is_cut = any(sum(numel > 0 for _, numel in holders) > 1 for holders in table)
        sizes = [(rows, columns) for _, _, rows, columns in cut]
        owners = owners_of(sizes, [[numel for _, numel in holders] for holders in table])
        self._matrices = [
            Matrix(
                rows,
                columns,
                piece,
                owner=owner,
                held={r: (start, numel) for r, (start, numel) in enumerate(holders) if numel},
            )
            for (rows, columns), piece, holders, owner in zip(sizes, pieces, table, owners, strict=True)
            if piece is not None
        ]

    def moments(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Return the momentum of matrices, AdamW's two moments of anything else."""
        return self._moments(flat, MOMENTUM if self._holds_matrices(flat) else MOMENTS)

    @torch.no_grad()
    def step(self, settings: StepSettings) -> None:  # type: ignore[override]
        """Update the parameter groups that are there. Every rank must call it equally often."""
        scale = settings.gradient_scale
        if not isinstance(scale, Tensor):  # stage 3
            scale = torch.full((), scale, dtype=torch.float64, device=self._device)
        is_finite = (scale != 0).double()  # stays on the device: 0 changes no weight and no momentum below
        # AdamW first: its weights travel while the matrices are computed.
        self._step_others(settings, is_finite)
        decays = {
            flat: group["weight_decay"]
            for group in self.param_groups
            for flat in group["params"]
            if group.get("is_matrix") and flat.grad is not None
        }
        if not decays:  # stage 3 has put another group there, on every rank
            return
        for flat in decays:
            self._look_ahead(flat, scale, is_finite)
        matrices = [matrix for matrix in self._matrices if matrix.mine.flat in decays]
        self._orthogonalize(matrices)
        for matrix in matrices:
            scaling = SCALINGS[self._config.muon_scaling](matrix.rows, matrix.columns)
            weights, update = matrix.mine.view(matrix.mine.flat), _update(matrix)
            change = weights * (settings.lr * decays[matrix.mine.flat])
            change.add_(update.mul_(settings.lr * scaling))
            # A NaN stays in the update, which is in the gradient's place, so that the engine can name the parameter.
            weights.sub_(change.masked_fill_(is_finite == 0, 0.0))
        for flat in decays:
            self.sink.updated(flat)

    def _step_others(self, settings: StepSettings, is_finite: Tensor) -> None:
        """Update the groups that hold no matrices, by AdamW."""
        lr = settings.lr * self._config.muon_adamw_ratio
        others = [group for group in self.param_groups if not group.get("is_matrix")]
        for group in others:
            for flat in group["params"] if group["weight_decay"] else ():
                if flat.grad is not None:
                    flat.sub_(flat * (is_finite * (lr * group["weight_decay"])))
        self._step_groups([{**group, "weight_decay": 0.0} for group in others], dataclasses.replace(settings, lr=lr))

    def _holds_matrices(self, flat: Tensor) -> bool:
        return any(matrix.mine.flat is flat for matrix in self._matrices)

    def _look_ahead(self, flat: Tensor, scale: Tensor, is_finite: Tensor) -> None:
        """Update the momentum of a flat, and write Nesterov's look-ahead over its gradient."""
        gradient, share = _gradient(flat), self._config.muon_momentum
        (momentum,) = self._moments(flat, MOMENTUM)
        gradient.mul_(scale)
        # A NaN times 0 is a NaN, which must not reach the momentum and has to stay in the gradient.
        clean = gradient.masked_fill(is_finite == 0, 0.0)
        momentum.lerp_(clean, (is_finite * (1.0 - share)).to(gradient.dtype))
        gradient.lerp_(momentum, share)

    def _orthogonalize(self, matrices: Sequence[Matrix]) -> None:
        """Replace the look-ahead of each matrix by its orthogonal update, on all ranks that hold pieces of it."""
        rank = 0 if self.ranks is None else self.ranks.rank
        owned = [matrix for matrix in matrices if matrix.owner == rank]
        lent = [matrix for matrix in matrices if matrix.owner != rank]
        received = self._exchange(
            {owner: [_update(matrix) for matrix in lent if matrix.owner == owner] for owner in self._others()},
            {r: [matrix.held[r][1] for matrix in owned if r in matrix.held] for r in self._others()},
        )
        results: dict[int, list[Tensor]] = {r: [] for r in self._others()}
        for matrix in owned:
            whole = torch.empty(matrix.rows * matrix.columns, dtype=torch.float32, device=matrix.mine.flat.device)
            for r, (start, numel) in matrix.held.items():
                whole[start : start + numel] = _update(matrix) if r == rank else received[r].pop(0)
            update = orthogonal(whole.view(matrix.rows, matrix.columns), self._dtype).reshape(-1)
            for r, (start, numel) in matrix.held.items():
                if r == rank:
                    _update(matrix).copy_(update[start : start + numel])
                else:
                    results[r].append(update[start : start + numel])
        returned = self._exchange(
            results, {owner: [m.mine.numel for m in lent if m.owner == owner] for owner in self._others()}
        )
        for matrix in lent:
            _update(matrix).copy_(returned[matrix.owner].pop(0))

    def _others(self) -> list[int]:
        return [] if self.ranks is None else [r for r in range(self.ranks.size) if r != self.ranks.rank]

    def _exchange(self, outgoing: dict[int, list[Tensor]], expected: dict[int, list[int]]) -> dict[int, list[Tensor]]:
        """Send each rank its tensors, and return the ones of the expected sizes that each rank has sent here."""
        if self.ranks is None or not self._is_cut:
            return {r: [] for r in expected}
        sent, received = ([0] * self.ranks.size for _ in range(2))
        for r in expected:
            sent[r], received[r] = sum(tensor.numel() for tensor in outgoing[r]), sum(expected[r])
        empty = torch.empty(0, dtype=torch.float32, device=self._device)
        parts = self.ranks.exchange(torch.cat([empty, *(t for r in outgoing for t in outgoing[r])]), sent, received)
        by_rank = dict(zip(expected, parts.split([received[r] for r in expected]), strict=True))
        return {r: list(by_rank[r].split(expected[r])) if expected[r] else [] for r in expected}


def owners_of(sizes: Sequence[tuple[int, int]], held: Sequence[Sequence[int]]) -> list[int]:
    """Return the owner of each matrix: of the ranks that hold most of it, the one with the least work so far.

    Args:
        sizes: Rows and columns of each matrix.
        held: How many elements of each matrix are on each rank.
    """
    work, owners = [0] * max(map(len, held), default=0), []
    for (rows, columns), numels in zip(sizes, held, strict=True):
        most = max(numels)
        owner = min((r for r, numel in enumerate(numels) if numel == most), key=work.__getitem__)
        work[owner] += rows * columns * min(rows, columns)  # Newton-Schulz, up to a factor
        owners.append(owner)
    return owners


def orthogonal(update_RC: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a float32 matrix with the singular vectors of ``update_RC`` and singular values that are nearly equal.

    They end between 0.7 and 1.2 if they were at least about a hundredth of the norm; the five steps multiply
    smaller ones by 485 at most.

    Args:
        update_RC: The matrix.
        dtype: Type of the products: float32, bfloat16, or float64 for a float64 matrix.
    """
    norm = sums_of_squares([update_RC.reshape(-1)], update_RC.device).sqrt()
    is_tall = update_RC.shape[0] > update_RC.shape[1]
    x = (update_RC.T if is_tall else update_RC).contiguous() / (norm + 1e-7).to(update_RC.dtype)
    x, (a, b, c) = x.to(dtype), COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if is_tall else x).to(update_RC.dtype)


def _gradient(flat: Tensor) -> Tensor:
    assert flat.grad is not None
    return flat.grad


def _update(matrix: Matrix) -> Tensor:
    """Return this rank's elements of a matrix's update, which is in the gradient's place."""
    return matrix.mine.view(_gradient(matrix.mine.flat))


def part_within(fragment: Fragment | None, first: int, numel: int) -> Fragment | None:
    """Return the part of a fragment within ``numel`` elements of its parameter, and ``start`` from ``first`` on."""
    if fragment is None:
        return None
    start = max(fragment.start, first)
    end = min(fragment.start + fragment.numel, first + numel)
    if start >= end:
        return None
    offset = fragment.offset + start - fragment.start
    return dataclasses.replace(fragment, offset=offset, start=start - first, numel=end - start)
