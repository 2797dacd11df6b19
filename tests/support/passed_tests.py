"""Which tests have passed on which code, kept in a file, so that a long run of tests goes on where it ended."""

import functools
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("megabert", "data_prep", "ds_configs", "slurm", "tests")


@functools.cache
def code_version() -> str:
    """The commit, and a hash of what was changed since; 'unknown' outside a repository."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changes = git("diff", "HEAD", "--", *CODE) + git("ls-files", "--others", "--exclude-standard", "--", *CODE)
    suffix = f" with changes {hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else ""
    return (git("rev-parse", "--short=10", "HEAD") or "unknown") + suffix


def read_passed(file: Path) -> set[str] | None:
    """The tests that the file lists, or None where it speaks of other code."""
    version, *passed = file.read_text().splitlines() if file.exists() else [""]
    return set(passed) if version == code_version() else None


class Progress:
    """The tests that have passed: a line each, after a line that names the code."""

    def __init__(self, file: Path) -> None:
        self._file, self._passed = file, read_passed(file) or set()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join([code_version(), *sorted(self._passed)]) + "\n")

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self._passed]
        config.hook.pytest_deselected(items=done)
        items[:] = [item for item in items if item.nodeid not in self._passed]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            with self._file.open("a") as file:
                file.write(f"{report.nodeid}\n")

    def pytest_report_header(self) -> str:
        return f"code: {code_version()}, {len(self._passed)} tests passed before"


if __name__ == "__main__":  # whether there is a run to go on with
    sys.exit(read_passed(Path(sys.argv[1])) is None)
