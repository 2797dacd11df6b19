"""One mechanism for all ops: a table of backends, and the choice among them, made once and logged.

``BACKENDS`` has the backends of each op, best first. ``auto`` takes the first that can run on the device. A backend
whose name is set and which cannot run is an error, never a silent fallback.
"""

import functools
import importlib
import importlib.util
import inspect
import logging
import os
import shutil
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megabert.foundation.errors import KernelError
from megabert.settings.config.model import ModelConfig

logger = logging.getLogger(__name__)
_compiled: list[str] = []


@dataclass(frozen=True)
class Backend:
    """One way to run an op."""

    name: str
    """What ``ops.<op>`` in a configuration calls it."""
    run: Any
    """The implementation, or ``module:name`` of one below ``megabert.ops``, imported if it is chosen: Triton may be
    absent."""
    obstacle: Callable[[str], str | None]
    """Takes a device type ("cpu", "cuda") and returns why the backend cannot run there, or None if it can."""


_disproved: dict[Backend, tuple[str, str]] = {}
"""Maps a backend that is wrong on this device to its op and the reason."""


def disprove(op: str, name: str, reason: str) -> None:
    """Let a backend of an op count as one that cannot run here, because it differs from the op's definition."""
    (backend,) = (backend for backend in BACKENDS[op] if backend.name == name)
    _disproved[backend] = (op, reason)
    choose.cache_clear()


def disproved() -> list[str]:
    """Return op and name of each backend that differs from its op's definition on this device, sorted."""
    return sorted(f"{op} without {backend.name}" for backend, (op, _) in _disproved.items())


def forget_disproved() -> None:
    """Let every backend run again: another device, or another try."""
    _disproved.clear()
    choose.cache_clear()


def _obstacle(backend: Backend, device: str) -> str | None:
    return _disproved[backend][1] if backend in _disproved else backend.obstacle(device)


def label_of(op: str) -> str:
    """Return the setting that chooses an op's backend, or the op if there is none."""
    setting = SETTINGS.get(op, op)
    return op if setting is None else f"ops.{setting}"


@functools.lru_cache(maxsize=256)
def choose(op: str, requested: str, device: str, table: tuple[Backend, ...] | None = None) -> Any:
    """Return the implementation that runs; at the first call log which one, and why.

    Args:
        op: Name of the op.
        requested: ``auto`` or the name of a backend.
        device: Device type of the input.
        table: Backends in order of preference, of which ``auto`` takes the first that can run; by default the op's.

    Raises:
        KernelError: A backend that was asked for by name cannot run here.
    """
    table = table or BACKENDS[op]
    obstacles = {backend.name: _obstacle(backend, device) for backend in table}
    usable = {backend.name: backend.run for backend in table if obstacles[backend.name] is None}
    if requested == "auto":
        name = next(iter(usable))
        why = "; ".join(f"{name}: {why}" for name, why in obstacles.items() if why) or "it is the first choice"
    elif requested in usable:
        name, why = requested, "asked for"
    else:
        obstacle = obstacles.get(requested, f"{op} has no such backend")
        raise KernelError(
            f"{label_of(op)}={requested} cannot run on {device}: {obstacle}. Choose auto or one of: "
            f"{', '.join(usable)}.",
            see="a-backend-cannot-run",
        )
    logger.debug("ops.%s: %s on %s (%s)", op, name, device, why)
    run = usable[name]
    if isinstance(run, str):
        module, function = run.split(":")
        run = getattr(importlib.import_module(f"megabert.ops.{module}"), function)
    if name == "triton":
        log_compilations()
    return run


ATTENTION_OPS = {"dense": "attention", "disentangled": "disentangled_attention", "windowed": "rotary_attention"}
"""For each kind of attention the op that does it; the setting ``ops.attention`` chooses the backend of all three."""
SETTINGS = {
    "rotary_attention": "attention",
    "disentangled_attention": "attention",
    "gated_gelu": "bias_gelu",
    "dropout": None,
    "dropout_keys": None,
    "embedding": None,
    "fp8_casts": None,
}
"""For each op the setting below ``ops`` that chooses its backend, if that is not its name; None: always ``auto``."""


def usable_backends(op: str, device: str) -> list[str]:
    """Return the names of the backends of an op that can run on a device type, best first."""
    return [name for name, obstacle in obstacles_of(op, device).items() if obstacle is None]


def obstacles_of(op: str, device: str) -> dict[str, str | None]:
    """Return for each backend of an op, best first, why it cannot run on a device type; None if it can."""
    return {backend.name: _obstacle(backend, device) for backend in BACKENDS[op]}


def describe_choices(
    requested: Mapping[str, str], device: str, *, has_lamb: bool, model: ModelConfig, precision: str
) -> str:
    """Return one line on which backend each op takes; the log file says why, op by op.

    Args:
        requested: The configuration's choice for each op.
        device: Device type.
        has_lamb: Whether the optimizer runs LAMB's passes.
        model: The model, whose attention is BERT's (``dense``), DeBERTa's (``disentangled``) or ModernBERT's
            (``windowed``).
        precision: The precision, not ``auto``.

    Raises:
        KernelError: A backend that was asked for by name cannot run here.
    """
    # As in `rotary_attention`: varlen takes 16 bits and drops no probabilities.
    fits_varlen = precision != "fp32" and model.attention_probs_dropout_prob == 0
    chosen: dict[str, list[str]] = {}
    for setting, name in requested.items():
        if setting == "lamb" and not has_lamb:
            continue
        op = ATTENTION_OPS[model.attention_kind] if setting == "attention" else setting
        if name == "auto":
            name = next(name for name in usable_backends(op, device) if name != "varlen" or fits_varlen)
        elif (op, name) == ("lamb", "apex"):  # an optimizer of its own, not a backend of the op
            refuse_apex_lamb(apex_obstacle(device, extension=APEX_LAMB))
        else:
            choose(op, name, device)
        chosen.setdefault(name, []).append(setting)
    return f"ops on {device}: " + "; ".join(f"{name} ({', '.join(ops)})" for name, ops in chosen.items())


def no_obstacle(device: str) -> None:
    """Return None: the backend runs on every device."""


def triton_obstacle(device: str) -> str | None:
    """Return why Triton kernels cannot run here; with TRITON_INTERPRET=1 they run in its interpreter, on a CPU."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not importable (CUDA builds of torch bring it)"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if device == "cuda":
        return _compiler_obstacle()
    return "Triton kernels need a CUDA GPU (or TRITON_INTERPRET=1, slow, to debug them)"


def _compiler_obstacle() -> str | None:
    """Return why Triton cannot compile the launcher of a kernel, a C extension for the running Python."""
    named = os.environ.get("CC")
    if not any(shutil.which(name) for name in ([named] if named else ["gcc", "clang"])):
        return f"Triton needs a C compiler, and {named or 'gcc or clang'} is not on the PATH (apt-get install gcc)"
    scheme = sysconfig.get_default_scheme()
    # Asked as Triton asks: Debian's own scheme names a local folder, which has no headers.
    include = Path(sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme))
    if not (include / "Python.h").exists():
        return f"Triton needs Python's headers, and {include} has no Python.h (apt-get install python3-dev)"
    return None


FLASH_CAPABILITY = (8, 0)
"""Compute capability from which on torch's FlashAttention runs."""


def varlen_obstacle(device: str) -> str | None:
    """Return why torch's FlashAttention for packed sequences cannot run here, with a window."""
    if device != "cuda":
        return "torch's varlen_attn needs a CUDA GPU"
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return f"torch {torch.__version__} has no torch.nn.attention.varlen"
    if "window_size" not in inspect.signature(varlen_attn).parameters:  # 2.10
        return f"the varlen_attn of torch {torch.__version__} has no window"
    if torch.cuda.get_device_capability() < FLASH_CAPABILITY:
        return "torch's FlashAttention needs compute capability 8.0"
    return None


APEX_BUILD = (
    "git clone https://github.com/NVIDIA/apex && cd apex && "
    "APEX_CPP_EXT=1 APEX_CUDA_EXT=1 pip install -v --no-build-isolation ."
)
"""Build command from Apex's README. There is no wheel, and the ``apex`` on PyPI is another package."""
APEX_LAYER_NORM, APEX_LAMB = "fused_layer_norm_cuda", "amp_C"
"""The compiled modules of NVIDIA Apex that hold its LayerNorm and its LAMB."""


def apex_obstacle(device: str, *, extension: str = APEX_LAYER_NORM) -> str | None:
    """Return why NVIDIA Apex cannot run here.

    Args:
        device: Device type.
        extension: Compiled module that the op needs.
    """
    if importlib.util.find_spec("apex") is None:
        return "NVIDIA Apex is not importable (source-only, optional; the 'apex' on PyPI is another package)"
    if importlib.util.find_spec(extension) is None:
        return f"the apex here has no module {extension}: it was built without CUDA, or is another package of that name"
    return None if device == "cuda" else "NVIDIA Apex needs a CUDA GPU"


def refuse_apex_lamb(obstacle: str | None) -> None:
    """Refuse ``ops.lamb=apex`` if something is in its way.

    Raises:
        KernelError: There is an obstacle.
    """
    if obstacle is not None:
        raise KernelError(f"ops.lamb=apex cannot run: {obstacle}. Choose ops.lamb=auto, triton or torch.")


def apex_status() -> str:
    """Return one line on whether NVIDIA Apex is installed, for ``megabert doctor``."""
    if importlib.util.find_spec("apex") is None:
        return f"apex: absent (optional); to build it: {APEX_BUILD}"
    lacking = [name for name in (APEX_LAYER_NORM, APEX_LAMB) if importlib.util.find_spec(name) is None]
    if lacking:
        return f"apex: without its modules {' and '.join(lacking)} (optional); to build them: {APEX_BUILD}"
    return "apex: importable (optional); choose it with ops.layer_norm=apex or ops.lamb=apex"


def _table(**runs: str) -> tuple[Backend, ...]:
    """Return backends by name, in order of preference."""
    obstacles = {"triton": triton_obstacle, "apex": apex_obstacle, "varlen": varlen_obstacle, "torch": no_obstacle}
    return tuple(Backend(name, run, obstacles[name]) for name, run in runs.items())


BACKENDS: dict[str, tuple[Backend, ...]] = {
    "layer_norm": _table(
        triton="layer_norm.triton:layer_norm_triton",
        apex="layer_norm.apex:layer_norm_apex",
        torch="layer_norm.cpu:layer_norm_torch",
    ),
    "attention": _table(triton="attention.dense.triton:attention_triton", torch="attention.dense.cpu:attention_torch"),
    "rotary_attention": _table(
        triton="attention.rotary.triton:rotary_attention_triton",
        varlen="attention.rotary.cpu:rotary_attention_varlen",
        torch="attention.rotary.cpu:rotary_attention_torch",
    ),
    "disentangled_attention": _table(
        triton="attention.disentangled.triton:disentangled_attention_triton",
        torch="attention.disentangled.cpu:disentangled_attention_torch",
    ),
    "bias_gelu": _table(triton="bias_gelu.triton:bias_gelu_triton", torch="bias_gelu.cpu:bias_gelu_torch"),
    "gated_gelu": _table(triton="gated_gelu.triton:gated_gelu_triton", torch="gated_gelu.cpu:gated_gelu_torch"),
    "cross_entropy": _table(
        triton="cross_entropy.triton:cross_entropy_triton", torch="cross_entropy.cpu:cross_entropy_torch"
    ),
    "lamb": _table(triton="lamb.triton:TRITON_PASSES", torch="lamb.reference:TORCH_PASSES"),
    "dropout": _table(triton="triton_support.dropout_kernels:dropped_triton", torch="dropout:dropped_torch"),
    "dropout_keys": _table(triton="triton_support.dropout_kernels:row_keys_triton", torch="dropout:row_keys_torch"),
    "embedding": _table(
        triton="triton_support.table_gradients:table_gradient_triton", torch="dense:table_gradient_torch"
    ),
    "fp8_casts": _table(triton="triton_support.row_casts:cast_rows_triton", torch="fp8:cast_rows_torch"),
}
"""The backends of each op, best first."""


def log_compilations() -> None:
    """Begin to log what Triton compiles in this process, or reads from its cache; again is the same as once.

    A kernel is compiled again for another dtype, another constant, and an integer that becomes 1 or a multiple of 16.
    A step in which that happens stands still.
    """
    from triton import knobs

    if knobs.compilation.listener is None:
        knobs.compilation.listener = _log_compilation


def compiled_kernels() -> list[str]:
    """Return the names of all kernels so far, in order; a kernel is there once for each of its compilations."""
    return list(_compiled)


def _log_compilation(*, metadata: dict[str, Any], times: Any, cache_hit: bool, **_: Any) -> None:
    """Log a compilation, as Triton reports it; its times are microseconds."""
    _compiled.append(metadata["name"])
    done = "read from Triton's cache" if cache_hit else "compiled"
    logger.debug("kernel %s: %s in %.2f s", metadata["name"], done, times.total / 1e6)
