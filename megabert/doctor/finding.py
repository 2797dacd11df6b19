"""What a check found, and the page that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "failed"]
"""note: works, but should be known; failed: training needs it, and it does not work."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report."""

    area: str
    """Check that found it."""
    level: Level
    text: str
    remedy: str = ""
    """What to do; empty where nothing is."""
    where: str = ""
    """Hosts and ranks; empty for this process, or all of a job."""


def is_fit(findings: Sequence[Finding]) -> bool:
    """Whether nothing that training needs has failed."""
    return all(finding.level != "failed" for finding in findings)


def merge(by_rank: Sequence[tuple[str, Sequence[Finding]]]) -> list[Finding]:
    """Join the findings of all ranks: what all found alike stands once, the rest with its hosts and ranks.

    Args:
        by_rank: Of each rank, its host and its findings.
    """
    finders: dict[Finding, list[tuple[str, int]]] = {}
    for rank, (host, findings) in enumerate(by_rank):
        for finding in findings:
            finders.setdefault(finding, []).append((host, rank))
    merged = []
    for finding, places in finders.items():
        hosts = sorted({host for host, _ in places})
        ranks = ", ".join(str(rank) for _, rank in places[:8]) + (", ..." if len(places) > 8 else "")
        where = "" if len(places) == len(by_rank) else f"{', '.join(hosts)} (rank {ranks})"
        merged.append(Finding(**{**vars(finding), "where": where}))
    order = list(dict.fromkeys(finding.area for finding in merged))
    return sorted(merged, key=lambda finding: order.index(finding.area))


def render(findings: Sequence[Finding]) -> str:
    """Return the report as text, a line a finding, with remedies below."""
    width = max(len(finding.area) for finding in findings)
    lines = []
    for finding in findings:
        mark = {"ok": "ok    ", "note": "note  ", "failed": "FAILED"}[finding.level]
        where = f"{finding.where}: " if finding.where else ""
        lines.append(f"{mark}  {finding.area:<{width}}  {where}{finding.text}")
        if finding.remedy:
            lines.append(f"{'':<{width + 10}}{finding.remedy}")
    failed = [finding for finding in findings if finding.level == "failed"]
    lines.append("")
    lines.append(
        f"{len(failed)} check(s) FAILED: {_names(failed)}" if failed else "everything that training needs works"
    )
    return "\n".join(lines)


def _names(failed: Sequence[Finding]) -> str:
    return "; ".join(
        dict.fromkeys(f"{finding.area}{f' on {finding.where}' if finding.where else ''}" for finding in failed)
    )
