"""What the parts run: BERT-Large on a GPU; ``--tiny`` proves the same code on a CPU in a minute."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Shapes and counts of every part."""

    copy_numel: int
    matmul: int
    tokens: int
    """Packed tokens of an op's row and of a micro-step."""
    hidden: int
    intermediate: int
    heads: int
    layers: int
    vocabulary: int
    lamb_numel: int
    lengths: tuple[int, ...]
    """Sequence lengths of training."""
    attention_lengths: tuple[int, ...]
    """Those of the attention rows."""
    rotary_lengths: tuple[int, ...]
    """Those of attention with rotary positions, to all tokens and to a window."""
    rotary_heads: int
    reach: int
    """Tokens to each side in the window."""
    disentangled_lengths: tuple[int, ...]
    """Sizes of attention with scores of relative positions, with the heads of the one with rotary positions."""
    span: int
    """Relative positions to each side: DeBERTa's buckets."""
    steps: int
    """Timed training steps."""
    warmup: int
    repeats: int
    """Runs of a model whose bits are compared; a sixth of it for an op."""
    agreement_steps: int
    agreement_layers: int
    agreement_hidden: int


GPU = Sizes(
    copy_numel=1 << 29,
    matmul=8192,
    tokens=32_768,
    hidden=1024,
    intermediate=4096,
    heads=16,
    layers=24,
    vocabulary=30_522,
    lamb_numel=335_141_888,
    lengths=(128, 512),
    attention_lengths=(128, 512),
    rotary_lengths=(1024, 8192),
    rotary_heads=12,
    reach=64,
    disentangled_lengths=(128, 512),
    span=256,
    steps=60,
    warmup=5,
    repeats=300,
    agreement_steps=100,
    agreement_layers=6,
    agreement_hidden=512,
)
TINY = Sizes(
    copy_numel=1 << 20,
    matmul=128,
    tokens=96,
    hidden=64,
    intermediate=128,
    heads=2,
    layers=2,
    vocabulary=120,
    lamb_numel=20_000,
    lengths=(16, 48),
    attention_lengths=(16, 48),
    rotary_lengths=(24, 96),
    rotary_heads=2,
    reach=8,
    disentangled_lengths=(16, 48),
    span=8,
    steps=2,
    warmup=1,
    repeats=12,
    agreement_steps=3,
    agreement_layers=2,
    agreement_hidden=64,
)
