"""The GPU runbook: parity, speed of ops, training throughput, agreement, a pre-training. ``make bench-gpu``.

    python -m benchmarks.gpu [--parts parity,ops,training,agreement,pretraining] [--output FOLDER] [--wheels FOLDER]
                             [--tiny] [--again]

Run from the repository's root on a machine with torch, triton and transformers. Parts training and agreement also need
pydantic, pretraining more (NEEDS); where they are absent and no network is, --wheels names a folder of wheels, unpacked
beside the output once. Each part runs in a process of its own inside its share of the nine minutes, writes
FOLDER/PART.json row by row, and goes on from there when run again; bench_gpu.json and bench_gpu.md hold all of them and
are written anew after each part.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "bench-gpu-work"
"""What is not a result: unpacked wheels, a run folder."""
LIMITS_S = {"parity": 60, "ops": 90, "training": 240, "agreement": 45, "pretraining": 85}
"""A part's share of the time. It starts no row after its end; what a part leaves, the parts after it have."""
GRACE_S = 20
"""After its time a part is ended: with the last one's grace, nine minutes in all."""
NEEDS = {
    "training": ("transformers", "pydantic"),
    "agreement": ("pydantic",),
    "pretraining": (
        "deepspeed",
        "pyarrow",
        "pydantic",
        "sentencex",
        "tensorboard",
        "tokenizers",
        "safetensors",
        "yaml",
    ),
}
"""Beside torch and Triton."""


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
    found["revision"] = None
    if shutil.which("git"):
        revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        found["revision"] = revision.stdout.strip() or None
    return found


def run_part(part: str, folder: Path, *, seconds: float, is_tiny: bool) -> None:
    """Measure one part in this process."""
    import torch

    from benchmarks.gpu.rows import Rows
    from benchmarks.gpu.sizes import GPU, TINY

    rows = Rows(folder / f"{part}.json", settings(is_tiny), seconds=seconds)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = importlib.import_module(f"benchmarks.gpu.{part}")
    module.measure(rows, device, TINY if is_tiny else GPU)
    rows.save()


def start_part(part: str, arguments: argparse.Namespace, seconds: float) -> str:
    """Measure one part in a process of its own; return what became of it."""
    lacking = [name for name in NEEDS.get(part, ()) if importlib.util.find_spec(name) is None]
    if lacking:
        return f"not run: not importable here: {', '.join(lacking)} (--wheels names a folder of wheels)"
    if seconds <= 0:
        return "not run: no time was left; run it again"
    command = [sys.executable, "-m", "benchmarks.gpu", "--in-this-process", part, "--output", str(arguments.output)]
    command += ["--seconds", str(seconds)] + (["--tiny"] if arguments.tiny else [])
    child = subprocess.Popen(command, cwd=ROOT, env=os.environ, start_new_session=True)
    try:
        code = child.wait(seconds + GRACE_S)
    except BaseException as error:
        os.killpg(child.pid, signal.SIGKILL)  # and what it has started
        child.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return f"stopped after {seconds + GRACE_S:.0f} s; run it again"
        raise
    return "done" if code == 0 else f"ended with exit code {code}"


def unpack(wheels: Path) -> Path:
    """Install wheels, and packages that come as ``NAME.tar.xz``, into a folder of their own, and return it."""
    site, mark = WORK / "site", WORK / "site" / ".complete"
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise SystemExit(f"--wheels {wheels}: no *.whl there")
    listing = "\n".join(path.name for path in sorted(wheels.iterdir()))
    if not mark.exists() or mark.read_text() != listing:
        shutil.rmtree(site, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*command, "--no-cache-dir", "--target", str(site), *map(str, files)], check=True)
        for archive in wheels.glob("*.tar.xz"):
            with tarfile.open(archive) as content:
                content.extractall(site, filter="data")
        mark.write_text(listing)
    return site


def cell(value: Any) -> str:
    """Return a short form for the table."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(cell(item) for item in value) if len(value) <= 4 else f"{len(value)} values"
    return "" if value is None else str(value)


def markdown(report: dict[str, Any]) -> str:
    """Return the report as one Markdown file, a table a part."""
    lines = ["# make bench-gpu", "", *(f"- {name}: {value}" for name, value in report["settings"].items())]
    for part, content in report["parts"].items():
        lines += ["", f"## {part}", "", f"{content['outcome']}; complete: {content['is_complete']}", ""]
        columns = list(dict.fromkeys(key for row in content["rows"].values() for key in row))
        lines += ["| row | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
        for name, row in content["rows"].items():
            lines.append(f"| {name} | " + " | ".join(cell(row.get(column)) for column in columns) + " |")
    return "\n".join(lines) + "\n"


def merge(folder: Path, outcomes: dict[str, str], is_tiny: bool) -> dict[str, Any]:
    """Write bench_gpu.json and bench_gpu.md of the parts that were asked for, or have rows of these settings."""
    report: dict[str, Any] = {"settings": settings(is_tiny), "parts": {}}
    for part in LIMITS_S:
        path = folder / f"{part}.json"
        content = json.loads(path.read_text()) if path.exists() else {}
        has_rows = content.get("settings") == report["settings"]
        if not has_rows and part not in outcomes:
            continue
        outcome = outcomes.get(part, "of an earlier run")
        report["parts"][part] = {
            "outcome": outcome,
            "is_complete": has_rows and content["is_complete"] and outcome in ("done", "of an earlier run"),
            "rows": content["rows"] if has_rows else {},
        }
    (folder / "bench_gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "bench_gpu.md").write_text(markdown(report))
    return report


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(LIMITS_S))
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-gpu")
    parser.add_argument("--wheels", type=Path, help="folder of wheels for what is not importable here")
    parser.add_argument("--tiny", action="store_true", help="small shapes: proves the runbook on a CPU")
    parser.add_argument("--again", action="store_true", help="measure anew what an earlier run left")
    parser.add_argument("--in-this-process", metavar="PART", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.parts.split(",")) - set(LIMITS_S))
    if unknown:
        parser.error(f"unknown parts {unknown}; there are {', '.join(LIMITS_S)}")
    arguments.output = arguments.output.resolve()
    return arguments


def main() -> int:
    """Run the parts that were asked for."""
    arguments = parse()
    folder = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.in_this_process:
        run_part(arguments.in_this_process, folder, seconds=arguments.seconds, is_tiny=arguments.tiny)
        return 0
    started, due = time.monotonic(), 0.0
    paths = [ROOT, *([unpack(arguments.wheels)] if arguments.wheels else [])]
    sys.path[:0] = map(str, paths)
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    outcomes: dict[str, str] = {}
    for part in arguments.parts.split(","):
        if arguments.again:
            (folder / f"{part}.json").unlink(missing_ok=True)
        due += LIMITS_S[part]
        begun = time.monotonic()
        outcomes[part] = start_part(part, arguments, due - (begun - started))
        report = merge(folder, outcomes, arguments.tiny)
        print(f"== {part}: {outcomes[part]} in {time.monotonic() - begun:.0f} s", flush=True)
    print((folder / "bench_gpu.md").read_text())
    problems = [
        f"{part}: {name}"
        for part, content in report["parts"].items()
        for name, row in content["rows"].items()
        if "error" in row or row.get("passes") is False
    ]
    problems += [f"{part}: not complete" for part in outcomes if not report["parts"][part]["is_complete"]]
    print("\n".join(["what failed, or is left for another run:", *problems]) if problems else "no row failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
