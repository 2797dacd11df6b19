"""Shards before their first step: fetched if they are at a URL, and checked by all ranks; later phases' fetched."""

import json
import platform
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from megabert.data.mixture import PhaseShards
from megabert.distributed.environments import describe_rank
from megabert.distributed.process_group import WATCHED_TIMEOUT, World, run_on_all_ranks, run_on_main_rank
from megabert.foundation.cached_folders import fetch_files, is_cached
from megabert.foundation.errors import DataError, HaltedError, MegabertError
from megabert.foundation.files import atomic_write
from megabert.foundation.json_files import read_json
from megabert.observability.logs import logger
from megabert.tokens.shards.checked_shards import CHECKED_NAME, Checked, check_shards
from megabert.tokens.shards.shard_set import ShardSet
from megabert.training.recovery.watchdog import Watchdog

AHEAD_CONNECTIONS = 2
"""Files that are fetched at the same time while steps are made, for which the rank has to compute their hashes."""
CLOSE_S = 5.0
"""Seconds that the end of a run waits for it to remove an unfinished file."""

Phases = Sequence[PhaseShards]


def check_phases(
    phases: Phases, run_dir: Path, world: World, watchdog: Watchdog, *, with_content: bool = True
) -> Checked:
    """Fetch shards that a cache lacks, and check all that this run has not checked against the manifest.

    The ranks of a node share the work on its cache, and all ranks the work on folders of the user's own.

    Returns:
        The record of all checked shards, for the next start.
    """
    known = run_on_main_rank(world, lambda: _read_checked(run_dir / CHECKED_NAME))
    hosts, advance = world.gather(platform.node()), watchdog.expect_start
    here = [rank for rank, host in enumerate(hosts) if host == hosts[world.rank]]

    def check() -> Checked:
        try:
            for folder in _cached(phases):
                fetch_files(folder, advance=advance)
            checked: Checked = {}
            for split in _splits(phases):
                ranks = here if is_cached(split.folder) else range(world.size)
                own = range(ranks.index(world.rank), len(split.shards), len(ranks))
                checked |= check_shards(split, known, own, with_content=with_content, advance=advance)
            return checked
        finally:  # another node's cache may be empty, whose ranks have limits of their own
            watchdog.expect("waiting for the shards of other nodes", WATCHED_TIMEOUT.total_seconds())

    try:
        for checked in world.gather(run_on_all_ranks(world, check)):
            known |= checked
    finally:
        watchdog.expect_start()
    return known


def keep_checked(checked: Checked, run_dir: Path, world: World) -> None:
    """Write the record of all checked shards into the run folder."""
    run_on_main_rank(world, lambda: atomic_write(run_dir / CHECKED_NAME, json.dumps(checked)))


def is_ahead(phase: PhaseShards) -> bool:
    """Return whether a phase's shards come from elsewhere, so that they are fetched and checked when it begins."""
    return bool(_cached([phase]))


@contextmanager
def fetching_ahead(phases: Phases) -> Iterator[None]:
    """Fetch the shards of later phases in the background, in one rank of each node; the phases' starts fetch the rest.

    A failure is only logged, since a phase that begins tries again.
    """
    is_closed = threading.Event()

    def advance() -> None:
        if is_closed.is_set():
            raise HaltedError("the run ends")

    def work() -> None:
        for folder in _cached(phases):
            try:
                fetch_files(folder, connections=AHEAD_CONNECTIONS, advance=advance)
            except (MegabertError, OSError) as error:
                if not is_closed.is_set():
                    logger.warning("shards of a later phase: %s The phase will try again.", error)

    thread = threading.Thread(target=work, name="megabert-fetch", daemon=True)
    if describe_rank()["LOCAL_RANK"] == "0":
        thread.start()
    try:
        yield
    finally:
        is_closed.set()
        if thread.is_alive():
            thread.join(CLOSE_S)


def _splits(phases: Phases) -> list[ShardSet]:
    return [source for phase in phases for split in phase for source in split.sources]


def _cached(phases: Phases) -> list[Path]:
    """Return the folders of a cache that phases read, once each and in their order."""
    return [folder for folder in dict.fromkeys(split.folder for split in _splits(phases)) if is_cached(folder)]


def _read_checked(path: Path) -> Checked:
    """Return the record of an earlier start; an empty one if it is missing or damaged."""
    if not path.exists():
        return {}
    try:
        return read_json(path, Checked, remedy="All shards are hashed again.")
    except DataError as error:
        logger.warning("%s", error)
        return {}
