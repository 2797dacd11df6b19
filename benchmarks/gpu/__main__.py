"""The GPU runbook: parity, speed of ops, training throughput, agreement, a pre-training. ``make bench-gpu``.

    python -m benchmarks.gpu [--parts parity,ops,training,agreement,pretraining] [--output FOLDER] [--tiny] [--again]

Run from the repository's root on a machine with torch, triton and transformers (parts training and agreement also need
pydantic, pretraining DeepSpeed and pyarrow). Each part runs in a process of its own with a time limit, writes
FOLDER/PART.json row by row, and goes on from there when run again; bench_gpu.json and bench_gpu.md hold all of them.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMITS_S = {"parity": 60, "ops": 120, "training": 210, "agreement": 60, "pretraining": 90}
"""Seconds after which a part starts no further row; nine minutes in all."""
GRACE_S = 60


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
    revision = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    found["revision"] = revision.stdout.strip() or None
    return found


def run_part(part: str, folder: Path, *, is_tiny: bool) -> None:
    """Measure one part in this process."""
    import torch

    from benchmarks.gpu.rows import Rows
    from benchmarks.gpu.sizes import GPU, TINY

    rows = Rows(folder / f"{part}.json", settings(is_tiny), seconds=LIMITS_S[part])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = importlib.import_module(f"benchmarks.gpu.{part}")
    module.measure(rows, device, TINY if is_tiny else GPU)
    rows.save()


def start_part(part: str, folder: Path, arguments: argparse.Namespace) -> str:
    """Measure one part in a process of its own; return what became of it."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--in-this-process", part, "--output", str(folder)]
    command += ["--tiny"] if arguments.tiny else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    try:
        code = subprocess.run(
            command, cwd=ROOT, env=environment, timeout=LIMITS_S[part] + GRACE_S, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        return f"stopped after {LIMITS_S[part] + GRACE_S} s"
    return "done" if code == 0 else f"ended with exit code {code}"


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
    """Write bench_gpu.json and bench_gpu.md of all parts that have left rows."""
    report: dict[str, Any] = {"settings": settings(is_tiny), "parts": {}}
    for part in LIMITS_S:
        path = folder / f"{part}.json"
        if path.exists():
            content = json.loads(path.read_text())
            outcome = outcomes.get(part, "of an earlier run")
            rows, is_complete = content["rows"], content["is_complete"] and outcome in ("done", "of an earlier run")
            report["parts"][part] = {"outcome": outcome, "is_complete": is_complete, "rows": rows}
    (folder / "bench_gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "bench_gpu.md").write_text(markdown(report))
    return report


def main() -> int:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(LIMITS_S))
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "bench-gpu")
    parser.add_argument("--tiny", action="store_true", help="small shapes: proves the runbook on a CPU")
    parser.add_argument("--again", action="store_true", help="measure anew what an earlier run left")
    parser.add_argument("--in-this-process", metavar="PART", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.in_this_process:
        run_part(arguments.in_this_process, folder, is_tiny=arguments.tiny)
        return 0
    parts = arguments.parts.split(",")
    unknown = sorted(set(parts) - set(LIMITS_S))
    if unknown:
        parser.error(f"unknown parts {unknown}; there are {', '.join(LIMITS_S)}")
    outcomes: dict[str, str] = {}
    for part in parts:
        if arguments.again:
            (folder / f"{part}.json").unlink(missing_ok=True)
        started = time.monotonic()
        outcomes[part] = start_part(part, folder, arguments)
        print(f"== {part}: {outcomes[part]} in {time.monotonic() - started:.0f} s", flush=True)
    report = merge(folder, outcomes, arguments.tiny)
    print((folder / "bench_gpu.md").read_text())
    failed = [
        f"{part}: {name}"
        for part, content in report["parts"].items()
        for name, row in content["rows"].items()
        if "error" in row or row.get("passes") is False
    ]
    print("\n".join(["rows that failed:", *failed]) if failed else "no row failed")
    return 1 if failed or set(outcomes.values()) != {"done"} else 0


if __name__ == "__main__":
    sys.exit(main())
