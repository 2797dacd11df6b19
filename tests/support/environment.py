"""Which variables of the environment the programs and scripts read, so that tests start without the caller's."""

from collections.abc import MutableMapping

CLEARED = {
    *("CHECK", "CONFIG", "CONTAINER", "CORPUS", "CUDA", "DATA", "DATA_FLAGS", "DEVICE", "DOCTOR", "FINETUNE_DATA"),
    *("FINETUNE_DIR", "FINETUNE_OPTIONS", "GPU", "IMAGE", "INPUT", "MODEL", "MOUNTS", "MPI", "OUTPUT", "PYTHON"),
    *("PREPARE_OPTIONS", "PRETRAIN_OPTIONS", "RECIPE", "RUN_DIR", "SUBMIT_OPTIONS", "TASK", "TORCH_INDEX", "VENV"),
    *("CROSS_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"),
    *("TRACKIO_SERVER_URL", "TRACKIO_SPACE_ID"),
    *("CC", "DS_ACCELERATOR", "HF_ENDPOINT", "LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"),
    *("GLOO_SOCKET_IFNAME", "MPLBACKEND", "NUMBA_NUM_THREADS", "PYTHONSAFEPATH", "TORCH_GLOO_LAZY_INIT"),
}
"""Settings of scripts in slurm/, examples/ and requirements/, of launchers and trackers, and the programs' switches."""
CLEARED_PREFIXES = ("OMPI_", "PMI", "SBATCH_", "SLURM_", "SLURMD_", "TORCHELASTIC_")
FROM_OUTSIDE = {"COLUMNS", "HF_TOKEN", "HF_HUB_OFFLINE", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"}
"""Cleared too, though no source of ours names them: make and the terminal set them for what they start, and
huggingface_hub reads them."""
KEPT = {
    "CUDA_VISIBLE_DEVICES": "chooses the card for the tests in tests/gpu",
    "NUMBA_CACHE_DIR": "of the machine: compiled loops are kept there",
    "OMP_NUM_THREADS": "set by tests/conftest.py",
    "PATH": "of the machine",
    "PWD": "of the shell",
    "PYTHONPATH": "of the machine",
    "SECONDS": "of the shell",
    "TRITON_CACHE_DIR": "of the machine; tests/unit/ops set it for processes of their own",
    "TRITON_INTERPRET": "set by tests/unit/ops/test_interpreted_kernels.py for a process of its own",
    "XDG_CACHE_HOME": "of the machine: compiled loops are kept there",
}
"""What is read and stays, with the reason."""


def is_cleared(name: str) -> bool:
    """Return whether tests start without a variable."""
    return name in CLEARED or name in FROM_OUTSIDE or name.startswith(CLEARED_PREFIXES)


def clear(environment: MutableMapping[str, str]) -> None:
    """Remove every variable that a program or script under test would read."""
    for name in [name for name in environment if is_cleared(name)]:
        del environment[name]
