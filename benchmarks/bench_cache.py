"""The rate at which a cache is filled from a server, over a plain copy's from the same server.

    python benchmarks/bench_cache.py [--files 16] [--mib 64] [--repeats 5]

The server is Python's own, a process of its own on 127.0.0.1. The plain copy asks for the same files by the same number
of connections, and writes what comes: no hash, no fsync. Both are timed in turn; the ratio is that of the medians. The
bar is 80%.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from megabert.foundation.cached_folders import cached_folder, fetch_files  # noqa: E402
from megabert.foundation.files import sha256_file  # noqa: E402
from megabert.foundation.remote_files import CONNECTIONS  # noqa: E402


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


def copy_plainly(url: str, names: list[str], folder: Path) -> None:
    """Copy files without a check."""
    folder.mkdir()

    def copy(name: str) -> None:
        with urllib.request.urlopen(f"{url}/{name}") as source, open(folder / name, "xb") as target:
            shutil.copyfileobj(source, target, 1 << 20)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(copy, names))


def seconds(work: Callable[[], None]) -> float:
    """Return the seconds that work takes."""
    os.sync()
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def main() -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=16, metavar="N")
    parser.add_argument("--mib", type=int, default=64, metavar="MIB", help="size of a file")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work, plain, cached = Path(temporary), [], []
        names = write_source(work / "source", options.files, options.mib << 20)
        command = [
            sys.executable,
            "-u",
            "-m",
            "http.server",
            "0",
            "--bind",
            "127.0.0.1",
            "--directory",
            work / "source",
        ]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{server.stdout.readline().split(' port ')[1].split()[0]}"
            for _ in range(options.repeats + 1):
                cached_folder.cache_clear()
                plain.append(seconds(lambda: copy_plainly(url, names, work / "plain")))
                folder = cached_folder(url, str(work / "cache"))
                cached.append(seconds(lambda folder=folder: fetch_files(folder)))
                shutil.rmtree(work / "plain")
                shutil.rmtree(work / "cache")
        finally:
            server.kill()
            server.wait()
    mib = options.files * options.mib
    slow, fast = statistics.median(cached[1:]), statistics.median(plain[1:])
    print(
        f"{options.files} files of {options.mib} MiB by {CONNECTIONS} connections, median of {options.repeats} rounds"
    )
    print(f"plain copy {mib / fast:,.0f} MiB/s, into the cache {mib / slow:,.0f} MiB/s: {fast / slow:.0%}")


if __name__ == "__main__":
    main()
