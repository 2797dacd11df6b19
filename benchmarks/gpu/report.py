"""One report of all parts: bench_gpu.json, and bench_gpu.md with what was aimed at on top."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.bars import held_against_bars

Report = dict[str, Any]


def cell(value: Any) -> str:
    """Return a short form for the table."""
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(cell(item) for item in value) if len(value) <= 4 else f"{len(value)} values"
    return "" if value is None else str(value)


def table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return rows by name as lines of Markdown."""
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    lines = ["| row | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        lines.append(f"| {name} | " + " | ".join(cell(row.get(column)) for column in columns) + " |")
    return lines


def markdown(report: Report) -> str:
    """Return the report as one Markdown file, a table a part."""
    lines = ["# make bench-gpu", "", *(f"- {name}: {value}" for name, value in report["settings"].items())]
    lines += ["", "## What was aimed at", "", *table(report["bars"])]
    for part, content in report["parts"].items():
        lines += ["", f"## {part}", "", f"{content['outcome']}; complete: {content['is_complete']}", ""]
        lines += table(content["rows"])
    return "\n".join(lines) + "\n"


def gather(folder: Path, settings: Mapping[str, Any], outcomes: Mapping[str, str], parts: Sequence[str]) -> Report:
    """Return the parts that were asked for, or have rows of these settings."""
    report: Report = {"settings": dict(settings), "bars": {}, "parts": {}}
    for part in parts:
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
    report["bars"] = held_against_bars({part: content["rows"] for part, content in report["parts"].items()})
    for name, bar in report["bars"].items():
        if name.startswith("parity ") and not report["parts"]["parity"]["is_complete"]:
            bar |= {"found": f"{bar['found']}, and rows are left", "reached": False}
    return report


def write_report(
    output: Path, folder: Path, settings: Mapping[str, Any], outcomes: Mapping[str, str], parts: Sequence[str]
) -> list[str]:
    """Write both files, each at once or not at all, and return what failed or is left for another run.

    Args:
        output: Where to.
        folder: Rows of the parts.
        settings: Rows of others are left out.
        outcomes: Of the parts that were asked for.
        parts: In order.
    """
    report = gather(folder, settings, outcomes, parts)
    for name, text in (("bench_gpu.json", json.dumps(report, indent=1) + "\n"), ("bench_gpu.md", markdown(report))):
        (output / f"{name}.tmp").write_text(text)
        os.replace(output / f"{name}.tmp", output / name)
    problems = [
        f"{part}: {name}"
        for part, content in report["parts"].items()
        for name, row in content["rows"].items()
        if "error" in row or row.get("passes") is False
    ]
    return problems + [f"{part}: not complete" for part in outcomes if not report["parts"][part]["is_complete"]]
