"""Files of other hosts, by fsspec: read through any of its protocols, fetched and stored whole, with retries.

A login never comes from us: each protocol's library finds it in its own places, such as ``~/.aws`` or ``~/.netrc``.
"""

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from megabert.foundation.errors import ConfigError, DataError, HaltedError, MegabertError
from megabert.foundation.files import atomic_path, sha256_file
from megabert.foundation.full_disk import NO_SPACE

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
Advance = Callable[[], object]
"""Called now and then during a transfer, which an exception of it ends."""

CONNECTIONS = 8
"""Files that are transferred at the same time."""
RETRY_AFTER_S = (1.0, 2.0, 4.0, 8.0)
"""Pauses before a request that failed is repeated."""
CONNECT_S, SILENT_S = 30.0, 60.0
"""Seconds to wait for a connection, and for the next bytes of an open one. The whole of a large file may take hours."""
LOOK_S = 0.1
"""Time between two looks in a pause at whether the transfer is to end."""
BLOCK_BYTES = 1 << 20


def is_url(path: str) -> bool:
    """Return whether a path is an fsspec URL such as ``s3://bucket/key``."""
    return "://" in path


def find_secret(url: str) -> str:
    """Return what of a URL is a secret, or may hold one: a login or the query of a signed address; empty if nothing."""
    has_login = any(re.match(r"[^/]*://[^/]*@", part) for part in url.split("::"))  # of a chained URL
    return "a login" if has_login else "a query" if re.search(r"https?://[^?]*\?", url) else ""


@contextmanager
def remote(url: str, verb: str = "read") -> Iterator[tuple[Any, str]]:
    """Yield the fsspec file system of a URL, and the name of the file in it, which is to be ``read`` or ``written``.

    Raises:
        ConfigError: The URL is none, or lacks what its protocol needs, or a package is missing.
        DataError: Whatever a back end raises while the file system is used; each has exceptions of its own.
        OSError: This machine's disk is full.
    """
    try:
        import fsspec

        yield fsspec.core.url_to_fs(url, **_options(url))
    except MegabertError:
        raise
    except ImportError as error:
        raise ConfigError(
            f"{url}: reading URLs needs packages that are not installed ({error}). Install them: pip install "
            "'megabert[store]' for s3 and https, or the package that fsspec names for another protocol."
        ) from error
    except Exception as error:
        # A TypeError: a host, a repository or the like is missing. A wrong certificate is a ValueError and an OSError.
        if isinstance(error, ValueError | TypeError) and not isinstance(error, OSError):
            raise ConfigError(
                f"{url}: {error}. Give a local path, or a URL that fsspec knows with all that its protocol needs."
            ) from error
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            raise
        cause = _cause_of(error)
        why = "not there" if isinstance(cause, FileNotFoundError) else str(cause) or type(cause).__name__
        remedy = "Check the URL, the network and your credentials, and the server's certificate."
        raise DataError(f"{url}: cannot be {verb} ({why}). {remedy}") from cause


def _cause_of(error: Exception) -> BaseException:
    """Return the failure of a server or a connection that fsspec reports as a missing file if it asks for a size."""
    answer = error.__cause__
    if not isinstance(error, FileNotFoundError) or getattr(answer, "status", 0) == 404:
        return error
    is_broken = isinstance(answer, OSError) or type(answer).__module__.startswith("aiohttp")
    return answer if answer and is_broken else error


def _options(url: str) -> dict[str, Any]:
    """Return options of the file system: by default aiohttp gives a whole file five minutes, and reads no ~/.netrc."""
    if not url.startswith(("http://", "https://")):
        return {"auto_mkdir": True} if url.startswith("file://") else {}
    import aiohttp
    from fsspec.config import conf

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
    users = conf.get(url.partition(":")[0], {}).get("client_kwargs", {})
    return {"client_kwargs": {"timeout": timeout, "trust_env": True, **users}}


def persistently(work: Callable[[], Result], advance: Advance = lambda: None) -> Result:
    """Do work with files of another host, again after each of several pauses if it fails; return its result.

    A missing file, a refused access and a full disk are final.

    Args:
        work: The work.
        advance: Called before a pause and in it; an exception that it raises ends the attempts.

    Raises:
        DataError: The last attempt's.
    """
    for pause_s in RETRY_AFTER_S:
        try:
            return work()
        except DataError as error:
            is_final = isinstance(error.__cause__, FileNotFoundError | PermissionError)
            if is_final or isinstance(error, HaltedError) or getattr(error.__cause__, "status", 0) in (401, 403):
                raise
            advance()
            logger.warning("%s Trying again in %g s.", error, pause_s)
            end = time.monotonic() + pause_s
            while (left := end - time.monotonic()) > 0:
                time.sleep(min(left, LOOK_S))
                advance()
    return work()


def read_remote(url: str) -> bytes:
    """Return the content of a small file.

    Raises:
        ConfigError, DataError: As `remote`.
    """

    def attempt() -> bytes:
        with remote(url) as (filesystem, name):
            return bytes(filesystem.cat_file(name))

    return persistently(attempt)


def remote_size(url: str, *_: object, advance: Advance = lambda: None) -> int:
    """Return the bytes of a file; what else `transfer_all` gives is not used.

    Raises:
        ConfigError, DataError: As `remote`.
    """

    def attempt() -> int:
        with remote(url) as (filesystem, name):
            return int(filesystem.size(name) or 0)

    return persistently(attempt, advance)


def fetch_file(url: str, path: Path, sha256: str, *, advance: Advance = lambda: None) -> None:
    """Fetch a file, compare its SHA-256, and only then give it its name.

    Args:
        url: The file.
        path: Its path on this machine; it appears whole or not at all.
        sha256: Hexadecimal SHA-256 that its bytes have to have.
        advance: Called before each attempt, after each block and in pauses; its exception ends the transfer.

    Raises:
        ConfigError: As `remote`.
        DataError: The file cannot be read, other bytes came each time, or the disk is full.
    """

    def attempt() -> None:
        advance()
        with atomic_path(path) as temporary:
            with remote(url) as (filesystem, name):
                filesystem.get_file(name, str(temporary), callback=_calling(advance))
            if (digest := sha256_file(temporary)) != sha256:
                raise DataError(
                    f"{url}: SHA-256 is {digest} ({temporary.stat().st_size:,} bytes), the manifest says {sha256}: the "
                    "file there was damaged or replaced. Upload it again, or name a URL of the same build."
                )

    persistently(attempt, advance)


def store_file(url: str, path: Path, sha256: str, *, advance: Advance = lambda: None) -> bool:
    """Upload a file and read it back, unless the bytes are there already; return whether it was uploaded.

    Args:
        url: Its URL; a file there is replaced.
        path: The file.
        sha256: Hexadecimal SHA-256 of its bytes.
        advance: As of `fetch_file`.

    Raises:
        ConfigError: As `remote`.
        DataError: It cannot be written, or read back with the same bytes.
    """

    def attempt() -> bool:
        advance()
        with remote(url, "written") as (filesystem, name):
            if _sha256(filesystem, name, advance) == sha256:
                return False
            filesystem.put_file(str(path), name, callback=_calling(advance))
            filesystem.invalidate_cache()
            if (digest := _sha256(filesystem, name, advance)) != sha256:
                raise DataError(
                    f"{url}: SHA-256 is {digest or 'unknown'} after the upload, the manifest says {sha256}. Run the "
                    f"same command again; if that does not help, check {path} with megabert-data verify."
                )
            return True

    return persistently(attempt, advance)


def transfer_all(
    transfer: Callable[..., Result],
    url: str,
    folder: Path,
    files: Mapping[str, str],
    *,
    connections: int = CONNECTIONS,
    advance: Advance = lambda: None,
) -> list[Result]:
    """Transfer several files at the same time and return the results, in the order of their ends.

    Args:
        transfer: `fetch_file`, `store_file` or `remote_size`.
        url: A folder.
        folder: The folder on this machine.
        files: SHA-256 of each file by its path in both folders.
        connections: Number of transfers at the same time.
        advance: Called now and then by each transfer; an exception that it raises ends all of them.

    Raises:
        BaseException: The first one, also of a signal; transfers under way are ended before.
    """
    is_over = threading.Event()

    def go_on() -> None:
        if is_over.is_set():
            raise HaltedError("another transfer has failed")
        advance()

    with ThreadPoolExecutor(connections) as pool:
        try:
            jobs = [pool.submit(transfer, f"{url}/{k}", folder / k, v, advance=go_on) for k, v in files.items()]
            return [job.result() for job in as_completed(jobs)]
        except BaseException:
            is_over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _calling(advance: Advance) -> Any:
    """Return the callback of a file system that calls a function after each block."""
    from fsspec.callbacks import Callback

    return Callback(hooks={"": lambda *_, **__: advance()})


def _sha256(filesystem: Any, name: str, advance: Advance) -> str:
    """Return the SHA-256 of a file of another host; empty if there is none."""
    digest = hashlib.sha256()
    try:
        with filesystem.open(name, "rb") as stream:
            while block := stream.read(BLOCK_BYTES):
                digest.update(block)
                advance()
    except FileNotFoundError:
        return ""
    return digest.hexdigest()
