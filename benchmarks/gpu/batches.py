"""Batches of full sequences, for the parts that train."""

# T packed tokens, B sequences, S tokens of a sequence, M masked positions

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.gpu.sizes import Sizes
from megabert.ops.sequences import PackedBatch


@dataclass(frozen=True, eq=False)
class Batch(PackedBatch):
    """Full sequences of random tokens."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def to(self, device: torch.device) -> "Batch":
        """Return a copy on a device; the host does not wait for it if this one is in pinned memory."""
        return replace(self, **{name: tensor.to(device, non_blocking=True) for name, tensor in self.tensors().items()})

    def pinned(self) -> "Batch":
        """Return a copy in pinned memory, where there is a GPU."""
        if not torch.cuda.is_available():
            return self
        return replace(self, **{name: tensor.pin_memory() for name, tensor in self.tensors().items()})

    def copy_(self, other: "Batch") -> None:
        """Take the numbers of another batch of this shape."""
        for name, tensor in self.tensors().items():
            tensor.copy_(getattr(other, name), non_blocking=True)

    def reversed(self) -> "Batch":
        """Return the same sequences in reverse order: the same sums in another order."""
        count, length = self.next_sentence_label_B.numel(), self.max_seqlen
        order = torch.arange(count - 1, -1, -1)
        rows = {name: getattr(self, name).view(count, length)[order].flatten() for name in ROWS}
        masked = self.masked_positions_M.view(count, -1)
        shifted = masked[order] + ((order.flip(0) - order) * length)[:, None]
        return replace(
            self,
            **rows,
            masked_positions_M=shifted.flatten(),
            masked_ids_M=self.masked_ids_M.view(count, -1)[order].flatten(),
            next_sentence_label_B=self.next_sentence_label_B[order],
            instance_seeds_B=self.instance_seeds_B[order],
        )


ROWS = ("input_ids_T", "position_ids_T", "segment_ids_T")


def random_batch(tokens: int, length: int, vocabulary: int, seed: int) -> Batch:
    """Return full sequences that can be learned: each token is the one before plus the sequence's own step."""
    generator = torch.Generator().manual_seed(seed)
    count = max(1, tokens // length)
    first_B1 = torch.randint(5, vocabulary, (count, 1), generator=generator)
    step_B1 = torch.randint(1, 8, (count, 1), generator=generator)
    original_BS = 5 + (first_B1 + step_B1 * torch.arange(length)) % (vocabulary - 5)
    per_sequence = max(1, round(0.15 * length))
    places_BM = torch.rand(count, length, generator=generator).argsort(1)[:, :per_sequence].sort(1).values
    masked_ids_BM = original_BS.gather(1, places_BM)
    return Batch(
        input_ids_T=original_BS.scatter(1, places_BM, 4).flatten(),
        position_ids_T=torch.arange(length).repeat(count),
        segment_ids_T=(torch.arange(length) >= length // 2).long().repeat(count),
        cu_seqlens=torch.arange(count + 1, dtype=torch.int32) * length,
        masked_positions_M=(places_BM + torch.arange(count)[:, None] * length).flatten(),
        masked_ids_M=masked_ids_BM.flatten(),
        next_sentence_label_B=(step_B1[:, 0] > 4).long(),
        instance_seeds_B=torch.randint(-(2**31), 2**31, (count,), generator=generator, dtype=torch.int64).int(),
        max_seqlen=length,
    )


def batches(sizes: Sizes, length: int, vocabulary: int) -> list[Batch]:
    """Return a few batches in pinned memory."""
    return [random_batch(sizes.tokens, length, vocabulary, seed).pinned() for seed in range(4)]


def cycle(items: list[Batch]) -> Iterator[Batch]:
    """Repeat a list for ever."""
    while True:
        yield from items
