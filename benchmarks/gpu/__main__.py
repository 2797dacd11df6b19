"""The GPU runbook, measured part by part: ``make bench-gpu``. benchmarks/gpu/README.md says how to use it.

    python -m benchmarks.gpu [--parts 1|parity,ops,...] [--output FOLDER] [--work FOLDER] [--wheels FOLDER]
                             [--tiny] [--again]

Run from the repository's root on a machine with torch, triton and transformers. What else a part needs is in PARTS;
where that is absent and no network is, --wheels names a folder of wheels, unpacked into the work folder and found again
later. Each part runs in a process of its own inside its share of the time, saves every row once measured, and continues
from there when run again; bench_gpu.json and bench_gpu.md hold all parts and are rewritten every few seconds.
"""

import argparse
import contextlib
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.logs import copy_lines, keep
from benchmarks.gpu.parts import ALL, COMMANDS, GRACE_S, PARTS, UNTIMED
from benchmarks.gpu.report import write_report
from benchmarks.gpu.runs import WHEELS

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("megabert/**/*.py", "benchmarks/gpu/*")
PATIENCE = 30
"""Factor on the limits in a rehearsal: a CPU may be shared."""
FRAGILE = ("numba",)
"""Packages that may be installed and yet not be importable: numba fails with a numpy that it does not know."""
REPORT_EVERY_S = 5.0
"""Seconds of rows that are lost at most when a machine is taken away."""
KEEP_EVERY_S = 20.0
"""Seconds after which logs and metrics are packed again while a part runs."""
END_S = 5.0
"""Seconds in which a part that is ended may end what it has started."""


def settings(is_tiny: bool) -> dict[str, Any]:
    """Return what a row's numbers depend on."""
    import torch

    found: dict[str, Any] = {"tiny": is_tiny, "torch": torch.__version__, "python": platform.python_version()}
    for package in ("triton", "transformers", "deepspeed"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {"device": properties.name, "multiprocessors": properties.multi_processor_count}
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
        found["cuda"] = torch.version.cuda
    else:
        found["device"] = "cpu"
    digest = hashlib.sha256()  # of the code: a copy of the repository may have no git
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern) if path.suffix in (".py", ".yaml")):
        digest.update(path.read_bytes())
    return found | {"code": digest.hexdigest()[:12]}


def run_part(part: str, arguments: argparse.Namespace) -> None:
    """Measure one part in this process."""
    import torch

    from benchmarks.gpu.rows import Rows
    from benchmarks.gpu.sizes import GPU, TINY

    rows = Rows(
        rows_folder(arguments) / f"{part}.json",
        settings(arguments.tiny),
        deadline=arguments.deadline,
        keep_failed=arguments.keep_failed,
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = importlib.import_module(f"benchmarks.gpu.{part}")
    try:
        module.measure(rows, device, TINY if arguments.tiny else GPU)
    except SystemExit as ended:  # the exit code says that a new process is to go on
        # Freeing memory of a device that no longer answers aborts a process, with another code.
        sys.stderr.flush()
        os._exit(int(ended.code or 0))
    rows.finish()


def rows_folder(arguments: argparse.Namespace) -> Path:
    """Return where parts keep their rows."""
    folder: Path = arguments.work / "rows"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def is_importable(name: str) -> bool:
    """Return whether a package can be imported. A fragile one is imported, in a process of its own."""
    if name not in FRAGILE:
        return importlib.util.find_spec(name) is not None
    return subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, check=False).returncode == 0


def start_part(part: str, arguments: argparse.Namespace, seconds: float, report: Callable[[], object]) -> str:
    """Measure one part in a process of its own; return what became of it.

    Args:
        part: Its name.
        arguments: The command line.
        seconds: After that it starts no further row.
        report: Called every few seconds while it runs.
    """
    from benchmarks.gpu.rows import BROKEN

    lacking = [name for name in PARTS[part].needs if not is_importable(name)]
    if lacking:
        return f"not run: not importable here: {', '.join(lacking)} (wheels.py collects them, --wheels takes more)"
    if seconds <= 0:
        return "not run: no time was left; run it again"
    end = time.monotonic() + seconds
    more: list[str] = []
    while True:
        code = wait_for(part, arguments, end, more, report)
        if code is None:
            return f"stopped after {seconds + GRACE_S:.0f} s; run it again"
        if code != BROKEN or time.monotonic() >= end:
            return "done" if code == 0 else f"ended with exit code {code}"
        more = ["--keep-failed"]  # a kernel made the device unusable: a new process measures what is left


def wait_for(
    part: str, arguments: argparse.Namespace, end: float, more: list[str], report: Callable[[], object]
) -> int | None:
    """Run a part's process; return its exit code, None where it had to be ended."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--in-this-process", part, "--work", str(arguments.work)]
    command += ["--deadline", str(end), *more] + (["--tiny"] if arguments.tiny else [])
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    # A group, for killpg, in this session: a machine that ends a command's session ends the part as well.
    child = subprocess.Popen(command, cwd=ROOT, env=os.environ, process_group=0, **pipe)
    assert child.stdout is not None
    printing = copy_lines(child.stdout, arguments.work / "runs" / f"{part}.log")
    try:
        while True:
            left = end + GRACE_S - time.monotonic()
            if left <= 0:
                return None
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(min(REPORT_EVERY_S, left))
            report()
    finally:
        if child.poll() is None:
            child.terminate()  # the part then ends what it has started, in groups of their own
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        printing.join(timeout=5.0)  # a process that it started may still hold the pipe


def unpack(wheels: Path, work: Path) -> None:
    """Install wheels, and packages that come as ``NAME.tar.xz``, into a folder of their own below ``work``."""
    site = work / "sites" / wheels.resolve().name.lstrip(".")
    mark = site / ".complete"
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise SystemExit(f"--wheels {wheels}: no *.whl there")
    listing = "\n".join(path.name for path in sorted(wheels.iterdir()))
    if mark.exists() and mark.read_text() == listing:
        return
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*command, "--no-cache-dir", "--target", str(site), *map(str, files)], check=True)
    for archive in wheels.glob("*.tar.xz"):
        with tarfile.open(archive) as content:
            content.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has none
            content.extractall(site)
    mark.write_text(listing)


def use_sites(arguments: argparse.Namespace) -> None:
    """Let this process and the parts import what was unpacked, now or by an earlier call.

    Wheels of another Python cost the parts that need them, which say so, and no other part.
    """
    wheels = arguments.wheels or (WHEELS if WHEELS.exists() else None)
    if wheels:
        try:
            unpack(wheels, arguments.work)
        except subprocess.CalledProcessError:  # pip has said why
            print(f"{wheels}: not installed; Python here is {platform.python_version()}", flush=True)
    sites = sorted(mark.parent for mark in arguments.work.glob("sites/*/.complete"))
    paths = [*map(str, (ROOT, *sites))]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])


@contextlib.contextmanager
def running_meanwhile(parts: list[str], arguments: argparse.Namespace) -> Iterator[None]:
    """Run parts by a command of their own, which has ended when this context ends; the rows are in the same folder."""
    if not parts:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.gpu", "--parts", ",".join(parts), "--work", str(arguments.work)]
    command += ["--output", str(arguments.work / "meanwhile")]
    command += ["--tiny"] * arguments.tiny + ["--again"] * arguments.again
    child = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
        child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()


@contextlib.contextmanager
def gpu_log(path: Path) -> Iterator[None]:
    """Write clocks, power and what limits them once a second, where nvidia-smi is."""
    program = shutil.which("nvidia-smi")
    if program is None:
        yield
        return
    fields = "timestamp,name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu,memory.used"
    command = [program, f"--query-gpu={fields},clocks_event_reasons.active", "--format=csv", "--loop=1"]
    with path.open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbered = "; ".join(f"{number}: {', '.join(parts)}" for number, parts in COMMANDS.items())
    parser.add_argument("--parts", default=",".join(PARTS), help=f"numbers or names (default: all). {numbered}")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-gpu", help="folder of the report")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "bench-gpu-work", help="folder of all the rest")
    parser.add_argument("--wheels", type=Path, help="folder of wheels (default: what wheels.py made, if it is there)")
    parser.add_argument("--tiny", action="store_true", help="small shapes: proves the runbook on a CPU")
    parser.add_argument("--again", action="store_true", help="measure again what an earlier run left")
    parser.add_argument("--in-this-process", metavar="PART", help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--keep-failed", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    named = [COMMANDS.get(word, (word,)) for word in arguments.parts.split(",")]
    arguments.parts = list(dict.fromkeys(part for parts in named for part in parts))
    unknown = sorted(set(arguments.parts) - set(PARTS))
    if unknown:
        parser.error(f"unknown parts {unknown}; there are {', '.join([*COMMANDS, *PARTS])}")
    arguments.output, arguments.work = arguments.output.resolve(), arguments.work.resolve()
    return arguments


def main() -> int:
    """Run the parts that were asked for."""
    arguments = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, as Ctrl-C does
    if arguments.in_this_process:
        run_part(arguments.in_this_process, arguments)
        return 0
    arguments.output.mkdir(parents=True, exist_ok=True)
    for library in ("NCCL", "GLOO"):  # one machine: where it has no network, looking for one fails
        os.environ.setdefault(f"{library}_SOCKET_IFNAME", "lo")
    use_sites(arguments)
    # Said before any part runs: a rented machine has no time for a second attempt.
    lacking = [name for name in ALL if not is_importable(name)]
    if lacking and arguments.parts[:1] != ["smoke"]:
        raise SystemExit(
            f"not importable here: {', '.join(lacking)}. Bring {WHEELS.relative_to(ROOT)} along, or --wheels."
        )
    outcomes: dict[str, str] = {}
    described, folder = settings(arguments.tiny), rows_folder(arguments)
    kept = -KEEP_EVERY_S
    due, started = 0.0, time.monotonic()  # a fresh machine has taken half a minute to import torch by now

    def report() -> list[str]:
        nonlocal kept
        if time.monotonic() - kept >= KEEP_EVERY_S:
            keep(arguments.work / "runs", arguments.output)
            kept = time.monotonic()
        return write_report(arguments.output, folder, described, outcomes, list(PARTS))

    def run(parts: list[str]) -> None:
        nonlocal due
        for part in parts:
            if arguments.again:
                (folder / f"{part}.json").unlink(missing_ok=True)
            begun = time.monotonic()
            # Time that a part leaves belongs to the next ones; time that it takes from them does not.
            due = max(due, begun - started) + PARTS[part].limit_s * (PATIENCE if arguments.tiny else 1)
            outcomes[part] = "running"
            outcomes[part] = start_part(part, arguments, due - (begun - started), report)
            keep(arguments.work / "runs", arguments.output)
            report()
            print(f"== {part}: {outcomes[part]} in {time.monotonic() - begun:.0f} s", flush=True)

    first, second = ([part for part in arguments.parts if part in parts] for parts in UNTIMED)
    with gpu_log(arguments.output / "gpu.csv"):
        if first and second:
            with running_meanwhile(second, arguments):
                run(first)
            outcomes |= dict.fromkeys(second, "done")
        run([part for part in arguments.parts if part not in outcomes])
    problems = report()
    print((arguments.output / "bench_gpu.md").read_text())
    print("\n".join(["what failed, or is left for another run:", *problems]) if problems else "no row failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
