"""Upload of a finished build: shards and tokenizers, each read back, and the manifest of each length last."""

import re
import sys
from contextlib import suppress

from data_prep.pipeline import BuildResult
from megabert.foundation.cached_folders import MANIFEST_NAME, listed_files
from megabert.foundation.errors import ConfigError
from megabert.foundation.files import sha256_file
from megabert.foundation.remote_files import find_secret, remote, store_file, transfer_all


def require_target(url: str, *, writes: bool = True) -> None:
    """Refuse, before hours of work, a URL that would show a secret or that cannot be written to.

    Args:
        url: The URL.
        writes: Whether to try it, with an empty file that is removed again.

    Raises:
        ConfigError, DataError: The URL has a login, a package is missing, or the server refuses.
    """
    if secret := find_secret(url):
        raise ConfigError(
            f"--output {url}: has {secret}. Leave it out: the protocol's library finds credentials in its own places."
        )
    if re.search("https?://|memory://", url):
        raise ConfigError(
            f"--output {url}: nothing is stored for others by this protocol. Give a URL such as s3://bucket/folder."
        )
    with remote(url, "written") as (filesystem, name):
        probe = f"{name.rstrip('/')}/.megabert-probe"
        if writes:
            filesystem.pipe_file(probe, b"")
            with suppress(PermissionError):  # a login may be allowed to add files alone
                filesystem.rm_file(probe)


def upload_build(built: BuildResult, url: str) -> None:
    """Upload what training reads of a build, its folders ``instances/LENGTH``; files that are there already stay.

    Args:
        built: The build.
        url: Where its folder ``instances`` goes.

    Raises:
        ConfigError, DataError: As `megabert.foundation.remote_files.store_file`. The same command continues.
    """
    uploaded = 0
    for length in built.manifests:
        folder, place = built.folder / f"instances/{length}", f"{url.rstrip('/')}/instances/{length}"
        for files in (listed_files(folder), {MANIFEST_NAME: sha256_file(folder / MANIFEST_NAME)}):
            uploaded += sum(transfer_all(store_file, place, folder, files))
    print(f"{url}: {uploaded} files uploaded and read back", file=sys.stderr)
