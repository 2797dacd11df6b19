"""The findings of the checks, and the report that shows them."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from megabert.foundation.text_tables import render_table

Level = Literal["ok", "note", "failed"]
"""``note``: it works, but you should know. ``failed``: training needs it and does not have it."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report."""

    area: str
    """The subject of the check, such as ``disk``."""
    level: Level
    text: str
    remedy: str = ""
    """Advice to the user; empty if nothing needs to be done."""
    where: str = ""
    """Hosts and ranks that found it; empty for this process, and for all ranks of a job."""


def verdict_on(area: str, is_good: bool, text: str, remedy: str, *, otherwise: Level = "note") -> Finding:
    """Return the finding of a check that has two outcomes; only the bad one has the remedy.

    Args:
        area: The subject of the check.
        is_good: Whether training can work with it.
        text: The observation, in both cases.
        remedy: Advice to the user for the bad one.
        otherwise: How bad that is.
    """
    return Finding(area=area, level="ok" if is_good else otherwise, text=text, remedy="" if is_good else remedy)


def failure(area: str, text: str, remedy: str, *, where: str = "") -> Finding:
    """Return the finding of what training needs and does not have."""
    return Finding(area=area, level="failed", text=text, remedy=remedy, where=where)


SLOW_SHARE = 0.25
"""A link or a device that is slower than this share of the median is a failure."""


def judge_rates(
    area: str, name: str, unit: str, rates: Mapping[str, float], remedy: str, *, least: float = 0.0
) -> list[Finding]:
    """Return the findings about a rate: a place that is far slower than the others fails.

    Args:
        area: The subject of the check.
        name: The rate.
        unit: Its unit.
        rates: The rate at each place; nothing is found about none.
        remedy: Advice to the user about a slow place.
        least: The slowest rate that is allowed, however slow the others are.
    """
    if not rates:
        return []
    median = statistics.median_high(rates.values())
    allowed = max(least, SLOW_SHARE * median)
    limit = f"{unit}; allowed are {allowed:,.4g} or more (median {median:,.4g})"
    slow = [
        failure(area, f"{name}: {rate:,.4g} {limit}", remedy, where=place)
        for place, rate in rates.items()
        if rate < allowed
    ]
    place = min(rates, key=lambda place: rates[place])
    others = f"; the slowest of {len(rates)}: {place}, median {median:,.4g}" if len(rates) > 1 else ""
    return slow or [Finding(area=area, level="ok", text=f"{name}: {rates[place]:,.4g} {unit}{others}")]


def named_ranks(hosts: Sequence[str]) -> list[str]:
    """Return how findings name each rank, given its host."""
    return [f"{host} (rank {rank})" for rank, host in enumerate(hosts)]


def listing(items: Iterable[object], separator: str = ", ") -> str:
    """Return the first eight items as text, and dots for the others: a job may have a thousand ranks."""
    words = list(map(str, items))
    return separator.join(words[:8] + ["..."] * (len(words) > 8))


def is_fit(findings: Sequence[Finding]) -> bool:
    """Whether nothing that training needs has failed."""
    return all(finding.level != "failed" for finding in findings)


def merge_findings(hosts: Sequence[str], by_rank: Sequence[Sequence[Mapping[str, Any]]]) -> list[Finding]:
    """Join the findings of all ranks: one line for what all of them found, and hosts and ranks with the others.

    Args:
        hosts: Each rank's host.
        by_rank: Each rank's findings, field by field, as they came from it.
    """
    finders: dict[Finding, list[tuple[str, int]]] = {}
    for rank, (host, own) in enumerate(zip(hosts, by_rank, strict=True)):
        for values in own:
            finders.setdefault(Finding(**values), []).append((host, rank))
    merged = []
    for finding, found_by in finders.items():
        names = sorted({host for host, _ in found_by})
        ranks = listing(rank for _, rank in found_by)
        where = "" if len(found_by) == len(by_rank) else f"{', '.join(names)} (rank {ranks})"
        merged.append(replace(finding, where=where))
    order = list(dict.fromkeys(finding.area for finding in merged))
    return sorted(merged, key=lambda finding: order.index(finding.area))


def render(findings: Sequence[Finding]) -> str:
    """Return the report as text: a line per finding with its remedy below it, and the verdict."""
    rows = []
    for finding in findings:
        where = f"{finding.where}: " if finding.where else ""
        rows.append((finding.level.replace("failed", "FAILED"), finding.area, where + finding.text))
        if finding.remedy:
            rows.append(("", "", finding.remedy))
    failed = [finding for finding in findings if finding.level == "failed"]
    names = dict.fromkeys(finding.area + (f" on {finding.where}" if finding.where else "") for finding in failed)
    bad = f"{len(failed)} check(s) FAILED: {'; '.join(names)}"
    return f"{render_table(rows)}\n\n{bad if failed else 'everything that training needs works'}"
