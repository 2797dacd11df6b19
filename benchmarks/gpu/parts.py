"""The runbook's parts: what each needs, its time, and which of them make up the two commands."""

from dataclasses import dataclass

ALL = ("pydantic", "deepspeed")
"""Packages without which no part of the two commands is begun."""
TRAINER = (*ALL, "numba", "pyarrow", "tensorboard", "tokenizers", "safetensors", "yaml")


@dataclass(frozen=True)
class Part:
    """One subject, a module of this package."""

    estimate_s: int
    """Seconds on an H200, of which 8 start the process."""
    needs: tuple[str, ...] = ()
    """Packages in addition to torch and Triton."""

    @property
    def limit_s(self) -> int:
        """Seconds after which it starts no row. Time that it leaves belongs to the parts after it."""
        return self.estimate_s * 11 // 10


PARTS = {
    "parity": Part(45, ("pydantic",)),
    "tuning": Part(53, ("pydantic",)),
    "training": Part(53, ("pydantic",)),
    "fp8": Part(54, ("pydantic",)),
    "products": Part(21, ("pydantic",)),
    "repeats": Part(48, ("pydantic",)),
    "resume": Part(75, TRAINER),
    "agreement": Part(53, ("pydantic",)),
    "ops": Part(48, ("pydantic",)),
    "trainer": Part(118, TRAINER),
    "speedrun": Part(218, TRAINER),
    "smoke": Part(20),
    "peers": Part(240, ("transformers", "pydantic")),
    "nsight": Part(60, ("pydantic",)),
    "curves": Part(200, TRAINER),
    "pretraining": Part(400, (*TRAINER, "transformers", "accelerate")),
}
COMMANDS = {
    "1": ("parity", "repeats", "resume", "agreement", "tuning", "training", "products"),
    "2": ("ops", "fp8", "trainer", "speedrun"),
}
"""Both fit 15 minutes of a rented machine, its start included; the other parts are run by name."""
UNTIMED = (("parity", "repeats"), ("resume", "agreement"))
"""Parts whose rows have no times: the second group runs at the same time as the first, before all timed parts."""
GRACE_S = 20
"""Seconds after its time at which a part is ended."""
