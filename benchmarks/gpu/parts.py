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
    "repeats": Part(60, ("pydantic",)),
    "ops": Part(100),
    "tuning": Part(80),
    "trainer": Part(220, TRAINER),
    "parity": Part(50),
    "training": Part(120, ("pydantic",)),
    "products": Part(40),
    "peers": Part(70, ("transformers", "pydantic")),
    "resume": Part(110, TRAINER),
    "agreement": Part(100, ("pydantic",)),
    "nsight": Part(60),
    "curves": Part(240, TRAINER),
    "pretraining": Part(450, (*TRAINER, "transformers", "accelerate")),
}
COMMANDS = {
    "1": ("smoke", "repeats", "ops", "tuning", "trainer"),
    "2": ("parity", "training", "products", "peers"),
    "3": ("resume", "agreement", "nsight", "curves"),
    "4": ("pretraining",),
}
"""Parts that fit one command of ten minutes together. The first two commands fit 15 minutes of a rented machine,
its start included, and the first one has what no card has run yet."""
GRACE_S = 20
"""After its time a part is ended: with the last one's grace, nine minutes in all."""
