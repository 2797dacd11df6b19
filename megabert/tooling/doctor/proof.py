"""``doctor --prove``: does everything that a run uses compute the right numbers here, and how fast is each part?

A check's findings are about this rank and are merged over ranks, or about all of them (links, collectives, rates).
Every rank goes through the same checks in the same order, since most of them have collectives inside.
"""

import contextlib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from megabert.data.mixture import open_training_mixture
from megabert.distributed.process_group import World, distributed_world, run_on_all_ranks
from megabert.engine.engine import DTYPES, refuse_precision, resolve_precision
from megabert.foundation.full_disk import existing_folder
from megabert.foundation.json_files import to_json
from megabert.models.build import build_model
from megabert.observability.logs import log_to_stderr, logger
from megabert.ops.backend import BACKENDS, SETTINGS, usable_backends
from megabert.ops.matmul_precision import set_matmul_precision
from megabert.ops.proof.table import OpCheck, Shapes, compare
from megabert.settings.command_line.arguments import Device
from megabert.settings.config.deepspeed import DEFAULT_BUCKET_SIZE, deepspeed_of
from megabert.settings.config.names import value_at
from megabert.settings.config.phase import PhaseConfig
from megabert.settings.config.run import OpsConfig, RunConfig
from megabert.tooling.doctor import links, rates
from megabert.tooling.doctor.devices import check_ops
from megabert.tooling.doctor.engine_steps import check_engines
from megabert.tooling.doctor.finding import Finding, failure, judge_rates, merge_findings, named_ranks
from megabert.tooling.doctor.machine import check_versions, describe_disk_error, time_disk
from megabert.tooling.measurements.measured import CollectiveSpeed, MeasuredRates, PhaseSpeed

PRODUCT_TOKENS = {"cuda": 16_384, "cpu": 1_024}
DISK_BYTES = 64 * 2**20
EXCLUDE = "Leave the node out (sbatch --exclude=NODE), or find out what else runs there (top, nvidia-smi)."


class Proof(NamedTuple):
    """What came of the checks, the same on every rank."""

    findings: list[Finding]
    measured: MeasuredRates | None
    """None if a check of the machine failed before all rates were known."""


def prove(config: RunConfig, run_dir: Path, *, device: Device, is_stopped: Callable[[], bool]) -> Proof:
    """Check and measure on this process, or on all ranks of the job that it is part of.

    Args:
        config: A run's configuration: its model, precision, lengths, optimizer, engine and shards, if it names any.
        run_dir: Where the run would write; it need not exist.
        device: Device of the run.
        is_stopped: Whether this rank has been asked to stop; if any rank has before the checks begin, none runs them.

    Raises:
        ConfigError: The configuration cannot run here.
        DataError: Its shards are missing or damaged.
    """
    with distributed_world(device) as world:
        log_to_stderr(world.rank)
        return prove_in(world, config, run_dir, is_stopped)


def prove_in(world: World, config: RunConfig, run_dir: Path, is_stopped: Callable[[], bool] = lambda: False) -> Proof:
    """Do what `prove` does in a world that is entered already."""
    if any(world.gather(is_stopped())):
        return Proof([], None)
    refuse_precision(config.precision, world.device, config.model)
    config = run_on_all_ranks(world, lambda: resolve(config, world.device))
    set_matmul_precision()
    return _Prover(config, run_dir, world).prove()


def resolve(config: RunConfig, device: torch.device) -> RunConfig:
    """Return the configuration with the precision and the vocabulary that ``auto`` comes to.

    Raises:
        DataError: The shards that it names are missing or damaged.
    """
    train = open_training_mixture(config, 0) if config.model.vocab_size == "auto" else None
    pieces = config.shards.planned_vocab_size if train is None else train.first.metadata.vocab_size
    precision = resolve_precision(config.precision, device)
    return replace(config, precision=precision, model=config.model.with_pieces(pieces))


class _Prover:
    """The checks in their order. ``own`` findings are about this rank, ``joint`` ones about all ranks together."""

    def __init__(self, config: RunConfig, run_dir: Path, world: World) -> None:
        self._config, self._run_dir, self._world = config, run_dir, world
        self._hosts: list[str] = world.gather(platform.node())
        self._own: list[Finding] = []
        self._joint: list[Finding] = []

    def prove(self) -> Proof:
        """Run all checks."""
        self._own += [*check_versions(), *check_ops(self._world.device.type)]
        with self._part("ops against their references"):
            self._own += check_problems(self._config, self._world.device)
        with self._part("collectives"):
            elements = self._bucket_elements()
            self._joint += links.check_collectives(self._world, self._hosts, elements)
            self._joint += links.compare_links(self._world, self._hosts)
            collectives = tuple(links.measure_collectives(self._world, self._hosts, elements))
        with self._part("engines and a checkpoint"):
            self._own += check_engines(self._config, self._world, self._run_dir)
        with self._part("rates"):
            measured = self._measure(collectives)
        by_rank = self._world.gather([vars(finding) for finding in self._own])
        return Proof([*merge_findings(self._hosts, by_rank), *self._joint], measured)

    @contextlib.contextmanager
    def _part(self, title: str) -> Iterator[None]:
        """Log how long a part of the checks takes."""
        started = time.perf_counter()
        yield
        if self._world.is_main:
            logger.info("doctor: %s: %.0f s", title, time.perf_counter() - started)

    def _bucket_elements(self) -> int:
        """Return the float32 elements of a bucket of the run's engine, which is no larger than the model."""
        engine = deepspeed_of(self._config, self._config.precision)
        size = value_at(engine, "zero_optimization.reduce_bucket_size") or DEFAULT_BUCKET_SIZE
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in build_model(self._config.model).parameters())
        return min(int(size), DEFAULT_BUCKET_SIZE, parameters)

    def _measure(self, collectives: tuple[CollectiveSpeed, ...]) -> MeasuredRates | None:
        """Return the rates of the slowest rank, and judge each rank's."""
        config, world, device = self._config, self._world, self._world.device
        assert config.precision != "auto"
        folder = existing_folder(self._run_dir)
        written_mib_s = read_mib_s = None
        try:
            written_mib_s, read_mib_s = time_disk(folder, DISK_BYTES)
        except OSError as error:
            self._own.append(describe_disk_error(folder, error))
        length = config.phases[0].max_seq_length
        tokens = length * max(1, PRODUCT_TOKENS[device.type] // length)
        copy = self._slowest("copy in memory", "GB/s", rates.copy_gb_s(device))
        products = self._slowest("matrix products", "TFLOP/s", rates.product_tflops(config, tokens, device))
        transfer = self._slowest("copy to the device", "GB/s", rates.host_to_device_gb_s(device))
        written = self._slowest("disk, written", "MiB/s", written_mib_s)
        read = self._slowest("disk, read", "MiB/s", read_mib_s)
        loader = self._slowest("loader", "tokens/s", rates.loader_tokens_per_s(config, world))
        phases = tuple(
            self._phase(phase, products or 1.0) for phase in {p.max_seq_length: p for p in config.phases}.values()
        )
        self._joint += links.describe_speeds(collectives)
        update_s = max(world.gather(rates.optimizer_s_per_parameter(config, device)))
        text = f"update by {config.optimizer.name}: {1e9 * update_s:.3g} ns per parameter"
        self._joint.append(Finding(area="rates", level="ok", text=text))
        if written is None or read is None or copy is None or products is None:
            return None
        nodes = len(set(self._hosts))
        return MeasuredRates(
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            memory_gib=rates.device_memory_gib(device),
            nodes=nodes,
            ranks_per_node=world.size // nodes,
            precision=config.precision,
            model=to_json(config.model),
            copy_gb_s=copy,
            product_tflops=products,
            host_to_device_gb_s=transfer,
            disk_write_mib_s=written,
            disk_read_mib_s=read,
            phases=phases,
            optimizer_s_per_parameter=update_s,
            collectives=collectives,
            loader_tokens_per_s=loader,
        )

    def _phase(self, phase: PhaseConfig, product_rate: float) -> PhaseSpeed:
        """Measure a phase on all ranks at the same time; the slowest rank's seconds count."""
        speed = rates.measure_phase(self._config, phase, self._world, product_rate)
        # Of all layers: fewer than were measured could come to no time at all, because `ends_s` may be negative.
        layers = self._config.model.num_hidden_layers
        rate = speed.tokens / speed.micro_step_s(layers)
        self._slowest(f"micro-step of length {phase.max_seq_length}", "tokens/s", rate)
        speeds = [PhaseSpeed(**values) for values in self._world.gather(vars(speed))]
        return max(speeds, key=lambda one: one.micro_step_s(layers))

    def _slowest(self, name: str, unit: str, rate: float | None) -> float | None:
        """Return the slowest rank's rate, None if no rank has one, and judge each rank's by the others'."""
        gathered = zip(named_ranks(self._hosts), self._world.gather(rate), strict=True)
        by_rank = {place: value for place, value in gathered if value}
        self._joint += judge_rates("rates", name, unit, by_rank, EXCLUDE)
        return min(by_rank.values(), default=None)


def check_problems(config: RunConfig, device: torch.device) -> Iterator[Finding]:
    """Hold the backend that a run would take of each op against the op's definition, in the run's shapes."""
    lengths = sorted({phase.max_seq_length for phase in config.phases})
    shapes = [Shapes.of_model(config.model, length=length, dtype=DTYPES[config.precision]) for length in lengths]
    for op in (*shapes[-1].ops, "dense", *(["fp8", "fp8_casts"] if config.precision == "fp8" else [])):
        setting = SETTINGS.get(op, op) or op
        asked = getattr(config.ops, setting, "auto")
        if (op, asked) == ("lamb", "apex"):  # an optimizer of its own, not a backend of the op
            continue
        # Only attention's kernels depend on the length.
        cases = shapes if "attention" in op else shapes[-1:]
        usable = usable_backends(op, device.type) if op in BACKENDS else ["torch"]
        backend, rows = _compared(op, usable if asked == "auto" else [asked], cases, device)
        yield from (failure("ops", str(row), _remedy(op, setting)) for row in rows if not row.passes)
        if all(row.passes for row in rows):
            masks = sum(row.bound == 0 for row in rows)
            exact = f", {masks} of them bit for bit" if masks else ""
            text = f"{op} by {backend}: {len(rows)} problem(s) within their bounds, values and gradients{exact}"
            yield Finding(area="ops", level="ok", text=text)


def _compared(
    op: str, backends: Sequence[str], cases: Sequence[Shapes], device: torch.device
) -> tuple[str, list[OpCheck]]:
    """Return the first backend that takes some of the problems, and how it did on these; else the last one's refusals.

    As a model does under ``auto``: Triton's attention, for example, refuses all problems of very wide heads.
    """
    for backend in backends:
        rows = [row for case in cases for row in compare(op, backend, case, device)]
        if taken := [row for row in rows if not row.is_refused]:
            return backend, taken
    return backend, rows


def _remedy(op: str, setting: str) -> str:
    """Return what to do about an op that is wrong here, in flags that ``pretrain`` has."""
    if setting in OpsConfig().backends:
        flag = f"--ops.{setting.replace('_', '-')}"
        return f"Take another backend of this op ({flag}) if there is one, and report this line."
    if op in ("fp8", "fp8_casts"):
        return "Train in bf16 (--precision bf16), and report this line."
    return "Leave the node out (sbatch --exclude=NODE), and report this line."
