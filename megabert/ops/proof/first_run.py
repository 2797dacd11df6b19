"""The first run of an op's kernels on a device holds them against the op's definition, and replaces what differs.

A compiler, a driver or a card may be wrong in ways that no test of ours has met; a week of training on a kernel that is
slightly wrong costs more than the seconds that this takes. Ranks decide together: a backend that failed on any of them
runs on none, because ranks that compute differently would train on different dropout masks and rounding.

What passed is kept in the user's cache, in one file for each device, driver, torch, Triton and text of
``megabert/ops``: with another of these, all is proven anew. A failure is not kept, since its cause may pass.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from megabert.foundation.errors import DataError, KernelError
from megabert.foundation.files import read_small
from megabert.foundation.json_files import read_json, write_json
from megabert.ops.backend import BACKENDS, SETTINGS, disprove, forget_disproved, label_of, usable_backends
from megabert.ops.proof.table import Shapes, compare
from megabert.ops.triton_support.tuned_tiles import code_sha256, device_name, sha256_in_use
from megabert.settings.config.extensions import installed_version
from megabert.settings.config.model import ModelConfig

logger = logging.getLogger(__name__)
Failures = dict[tuple[str, str], str]
"""Maps op and backend to the difference."""


def cases_of(
    models: Iterable[ModelConfig], lengths: Sequence[int], dtype: torch.dtype, *, in_fp8: bool = False
) -> list[tuple[str, Shapes]]:
    """Return the ops of some models, each with the shapes that its kernels depend on.

    Args:
        models: The models that are trained, vocabularies known.
        lengths: Longest sequence of each phase.
        dtype: Dtype of the weights.
        in_fp8: Whether encoder layers multiply in 8 bits.
    """
    cases: dict[tuple[str, Shapes], None] = {}
    for model in models:
        for length in lengths:
            shapes = Shapes.of_model(model, length=length, dtype=dtype)
            short = replace(shapes, length=1)  # only attention's kernels depend on the length
            ops = (*shapes.ops, *(["fp8_casts"] if in_fp8 else []))
            cases |= dict.fromkeys((op, shapes if "attention" in op else short) for op in ops)
            narrow = replace(short, hidden=model.embedding_width)
            cases |= {("embedding", narrow): None, ("layer_norm", narrow): None}
    return list(cases)


def settle(
    failures_by_rank: Sequence[Failures], requested: Mapping[str, str], *, unproven: str, device: torch.device
) -> tuple[str, ...]:
    """Replace every backend that failed on any rank by the next one in its table; on every rank alike.

    Args:
        failures_by_rank: What ``find_failures`` returned on each rank.
        requested: The configuration's choice of backend by setting.
        unproven: ``fallback`` or ``refuse``, as ``ops.unproven``.
        device: This rank's device.

    Returns:
        A sentence for each op that has another backend now; also logged as a warning.

    Raises:
        KernelError: The backend that would run differs, and was asked for by name, or ``unproven`` is ``refuse``.
    """
    forget_disproved()
    reasons: Failures = {}
    for rank, failures in enumerate(failures_by_rank):
        for case, difference in failures.items():
            reasons.setdefault(case, f"{difference} on rank {rank}")
    ops = dict.fromkeys(op for op, _ in reasons)
    chosen = {op: _chosen(op, requested, device.type) for op in ops}
    for (op, backend), reason in reasons.items():
        is_by_name = _asked(op, requested) != "auto"
        if backend == chosen[op] and (unproven == "refuse" or is_by_name):
            raise KernelError(
                f"{label_of(op)}: {backend} differs from the op's definition: {reason}. "
                f"Set {f'{label_of(op)}=auto and ' if is_by_name else ''}ops.unproven=fallback, and the next backend "
                "takes its place; ops.unproven=trust runs it as it is.",
                see="a-backend-cannot-run",
            )
        disprove(op, backend, f"it differs from the op's definition: {reason}")
    sentences = []
    for op in ops:
        why = "; ".join(reason for (other, _), reason in reasons.items() if other == op)
        replacement = usable_backends(op, device.type)[0]
        if replacement == chosen[op]:
            logger.debug("%s: %s runs; a backend after it is wrong here: %s", label_of(op), replacement, why)
            continue
        sentences.append(f"{label_of(op)}: {replacement} takes the place of a kernel that is wrong here: {why}")
        logger.warning("%s", sentences[-1])
    return tuple(sentences)


def agree(
    obstacles_by_rank: Sequence[Mapping[str, Mapping[str, str | None]]], requested: Mapping[str, str]
) -> tuple[str, ...]:
    """Let ``auto`` choose the same backend on every rank: one that cannot run on some rank runs on none.

    Args:
        obstacles_by_rank: For each rank and op what ``backend.obstacles_of`` returns.
        requested: The configuration's choice of backend by setting.

    Returns:
        A sentence for each op whose backend would have differed between ranks; also logged as a warning.
    """
    sentences = []
    for op, backends in obstacles_by_rank[0].items():
        columns = [obstacles[op] for obstacles in obstacles_by_rank]
        first_choices = {next(name for name in backends if column[name] is None) for column in columns}
        if _asked(op, requested) != "auto" or len(first_choices) == 1:
            continue
        names = list(backends)
        common = next(name for name in names if all(column[name] is None for column in columns))
        for name in names[: names.index(common)]:  # all of them, or a rank would choose the next one
            reason = next(f"{column[name]}, on rank {rank}" for rank, column in enumerate(columns) if column[name])
            disprove(op, name, reason)
            if name in first_choices:
                place = f"{common} takes the place of {name}"
                sentences.append(f"{label_of(op)}: {place}, which cannot run everywhere: {reason}")
                logger.warning("%s", sentences[-1])
    return tuple(sentences)


def _asked(op: str, requested: Mapping[str, str]) -> str:
    """Return the backend that the configuration names, or ``auto``."""
    setting = SETTINGS.get(op, op)
    return "auto" if setting is None else requested.get(setting, "auto")


def _chosen(op: str, requested: Mapping[str, str], device: str) -> str:
    """Return the backend that runs unless it is wrong."""
    asked = _asked(op, requested)
    return usable_backends(op, device)[0] if asked == "auto" else asked


def find_failures(cases: Sequence[tuple[str, Shapes]], requested: Mapping[str, str], device: torch.device) -> Failures:
    """Return the backends that differ here; one that passes is kept and not compared again.

    Args:
        cases: Ops and shapes, as ``cases_of`` returns them.
        requested: The configuration's choice of backend by setting; a setting that is left out does not run.
        device: This rank's device.

    Raises:
        KernelError: A kernel went wrong so badly that nothing else runs on the device.
    """
    forget_disproved()
    known = read_known(device)
    before, failures = set(known), Failures()
    for op, shapes in cases:
        for backend in _candidates(op, requested, device.type):
            name = f"{op} {backend} {shapes}"
            if name in known or (op, backend) in failures:
                continue
            logger.debug("ops.%s: %s is held against its definition", op, backend)
            rows = compare(op, backend, shapes, device)
            failed = [str(row) for row in rows if not (row.passes or row.is_refused)]
            if failed:
                failures[op, backend] = f"{failed[0]}" + (f" (and {len(failed) - 1} more)" if failed[1:] else "")
                _require_device(device, failures[op, backend])
            else:
                known.add(name)
    if known - before:
        write_known(device, known)
    return failures


def _candidates(op: str, requested: Mapping[str, str], device: str) -> list[str]:
    """Return the backends that may come to run, but for the last one, which has no substitute."""
    setting = SETTINGS.get(op, op)
    if op not in BACKENDS or (setting is not None and setting not in requested):
        return []
    asked = _asked(op, requested)
    return [name for name in usable_backends(op, device) if name != "torch" and asked in ("auto", name)]


def _require_device(device: torch.device, reason: str) -> None:
    """Refuse a device on which a kernel has gone wrong so badly that nothing else runs in this process."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)  # raises the error of an earlier kernel
    except RuntimeError as error:
        raise KernelError(
            f"{reason}. After that {device} answers nothing else ({error}), so no other backend can take its place in "
            "this process. Set the op to torch by name (ops.attention=torch) and start again.",
            see="a-backend-cannot-run",
        ) from error


_DRIVER = Path("/proc/driver/nvidia/version")


def read_known(device: torch.device) -> set[str]:
    """Return the names that a device has proven; none if they are not known."""
    try:
        path = _path(device)
        return set(read_json(path, list[str], remedy="It is written anew.")) if path.exists() else set()
    except (DataError, OSError, RuntimeError) as error:  # a RuntimeError: the user has no home folder
        logger.debug("kernels are proven again: %s", error)
        return set()


def write_known(device: torch.device, proven: Iterable[str]) -> None:
    """Keep the names that a device has proven; a cache that cannot be written costs the next run a few seconds."""
    try:
        path = _path(device)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, sorted(proven), indent=1)
    except (DataError, OSError, RuntimeError) as error:
        logger.debug("the next run proves its kernels again: %s", error)


def _path(device: torch.device) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    digest = hashlib.sha256(json.dumps(identity_of(device)).encode()).hexdigest()
    return cache / "megabert" / "proven-ops" / f"{digest[:24]}.json"


def identity_of(device: torch.device) -> dict[str, str]:
    """Return everything that a kernel's results may depend on, by name: device, driver, versions, code."""
    unit, driver = "", ""
    if device.type == "cuda":
        unit = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
        driver = read_small(_DRIVER).decode("ascii", "replace") if _DRIVER.exists() else ""
    return {
        "device": device_name(device),
        "unit": unit,
        "driver": driver,
        "torch": torch.__version__,
        "triton": installed_version("triton"),
        "is_interpreted": str(os.environ.get("TRITON_INTERPRET") == "1"),
        "code": code_sha256(),
        "tile_sizes": sha256_in_use(),
    }
