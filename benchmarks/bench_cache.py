"""The rate at which a cache is filled from a server, over a plain copy's from the same server.

    python benchmarks/bench_cache.py [--s3] [--files 16] [--mib 64] [--repeats 5]

The server is a process of its own on 127.0.0.1: Python's own, or moto's with ``--s3``. The plain copy is fsspec's, of
the same files by the same number of connections, each one synced to the disk, without a hash. At Python's server the
rate of urllib is printed as well, without a sync. All are timed in turn; the ratios are those of the medians, of
seconds and of CPU seconds of the client. The bar is 80%.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import fsspec

from megabert.foundation.cached_folders import cached_folder, fetch_files
from megabert.foundation.files import sha256_file, sync_file
from megabert.foundation.remote_files import CONNECTIONS


def write_source(folder: Path, files: int, size: int) -> list[str]:
    """Write files that a manifest lists, and return their names."""
    (folder / "tokenizer").mkdir(parents=True)
    names = [f"train-{number:05d}.arrow" for number in range(files)]
    for name, content in (("tokenizer/vocab.txt", 100), *((name, size) for name in names)):
        (folder / name).write_bytes(os.urandom(content))
    shards = [{"file": name, "sha256": sha256_file(folder / name)} for name in names]
    tokenizer = {"vocab.txt": sha256_file(folder / "tokenizer" / "vocab.txt")}
    (folder / "manifest.json").write_text(json.dumps({"shards": shards, "tokenizer_files": tokenizer}))
    return names


def copy_by_fsspec(url: str, name: str, path: Path) -> None:
    """Copy a file without a check, so that it is still there after a power cut."""
    filesystem, source = fsspec.core.url_to_fs(f"{url}/{name}")
    filesystem.get_file(source, str(path))
    sync_file(path)


def copy_by_urllib(url: str, name: str, path: Path) -> None:
    """Copy a file without a check and without a sync."""
    with urllib.request.urlopen(f"{url}/{name}") as source, open(path, "xb") as target:
        shutil.copyfileobj(source, target, 1 << 20)


def copy_all(copy: Callable[[str, str, Path], None], url: str, names: list[str], folder: Path) -> None:
    """Copy files into a new folder."""
    folder.mkdir()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(lambda name: copy(url, name, folder / name), names))


def fill_cache(url: str, names: list[str], folder: Path) -> None:
    """Fetch the same files into a new cache."""
    cached_folder.cache_clear()
    fetch_files(cached_folder(url, str(folder)), names)


def seconds(work: Callable[[], None], folder: Path) -> tuple[float, float]:
    """Return the seconds, and the CPU seconds of this process, that work takes; the folder is removed after it."""
    os.sync()
    begun, cpu = time.perf_counter(), time.process_time()
    work()
    taken = time.perf_counter() - begun, time.process_time() - cpu
    shutil.rmtree(folder)
    return taken


@contextmanager
def serve(folder: Path, *, s3: bool) -> Iterator[str]:
    """Serve a folder from a process of its own, and yield its URL."""
    if s3:
        command = [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "5317"]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.environ |= {"AWS_ENDPOINT_URL": "http://127.0.0.1:5317", "AWS_DEFAULT_REGION": "us-east-1"}
        os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    else:
        command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(folder)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        if not s3:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{server.stdout.readline().split(' port ')[1].split()[0]}"
            return
        while True:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", 5317)).close()
                break
            time.sleep(0.1)
        store = fsspec.filesystem("s3")
        store.mkdir("shards")
        store.put(f"{folder}/", "shards/wiki/", recursive=True)
        yield "s3://shards/wiki"
    finally:
        server.kill()
        server.wait()


def main() -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=16, metavar="N")
    parser.add_argument("--mib", type=int, default=64, metavar="MIB", help="size of a file")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    parser.add_argument("--s3", action="store_true", help="from moto's server by s3fs")
    options = parser.parse_args()
    ways = {"fsspec": copy_by_fsspec} if options.s3 else {"fsspec": copy_by_fsspec, "urllib": copy_by_urllib}
    taken: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        source, target = Path(temporary) / "source", Path(temporary) / "target"
        names = write_source(source, options.files, options.mib << 20)
        with serve(source, s3=options.s3) as url:
            works = {name: partial(copy_all, way, url, names, target) for name, way in ways.items()}
            works["cache"] = partial(fill_cache, url, names, target)
            for _ in range(options.repeats + 1):
                for name, work in works.items():
                    taken.setdefault(name, []).append(seconds(work, target))
    mib = options.files * options.mib
    print(
        f"{options.files} files of {options.mib} MiB by {CONNECTIONS} connections, median of {options.repeats} rounds"
    )
    medians = {
        name: [statistics.median(column) for column in zip(*rows[1:], strict=True)] for name, rows in taken.items()
    }
    for name, (wall, cpu) in medians.items():
        ratios = [f"{all_of / own:.0%}" for all_of, own in zip(medians[name], medians["cache"], strict=True)]
        print(f"{name}: {mib / wall:,.0f} MiB/s, {mib / cpu:,.0f} MiB per CPU s; the cache has {' and '.join(ratios)}")


if __name__ == "__main__":
    main()
