"""The runbook's parts: what each needs, its time, and which of them make up one command."""

from dataclasses import dataclass

TRAINER = ("deepspeed", "numba", "pyarrow", "pydantic", "tensorboard", "tokenizers", "safetensors", "yaml")


@dataclass(frozen=True)
class Part:
    """One subject, a module of this package."""

    limit_s: int
    """Its share of the time: it starts no row after its end. Time that it leaves belongs to the parts after it."""
    needs: tuple[str, ...] = ()
    """Packages beside torch and Triton."""


PARTS = {
    "smoke": Part(60, ("pydantic",)),
    "products": Part(30),
    "training": Part(120, ("pydantic",)),
    "parity": Part(60),
    "repeats": Part(60, ("pydantic",)),
    "ops": Part(110),
    "peers": Part(90, ("transformers", "pydantic")),
    "tuning": Part(90),
    "trainer": Part(310, TRAINER),
    "resume": Part(110, TRAINER),
    "agreement": Part(100, ("pydantic",)),
    "pretraining": Part(450, (*TRAINER, "transformers", "accelerate")),
    "nsight": Part(60),
    "curves": Part(240, TRAINER),
}
COMMANDS = {
    "1": ("smoke", "products", "training", "parity", "ops", "peers"),
    "2": ("trainer", "resume", "agreement"),
    "3": ("pretraining", "nsight"),
    "4": ("tuning", "repeats", "curves"),
}
"""Parts that fit one command of ten minutes together, the most telling first."""
GRACE_S = 20
"""After its time a part is ended: with the last one's grace, nine minutes in all."""
