"""Push an exported folder to the Hugging Face Hub, or to a server with the same interface (``HF_ENDPOINT``).

huggingface_hub transfers the files, tries each transfer again, and skips large files that are there. One commit makes a
branch show all files at once, and a branch that is new appears only after its commit. So readers of a revision see the
whole push or nothing of it, and the same call continues a push that was interrupted.

The library waits, and reads, for as long as a server sends, so its answers get limits of time and size. Each call has a
connection of its own. A timer shuts that down, which ends a read that would wait for ever; timeouts of the HTTP client
alone start again with each byte.
"""

import logging
import os
import re
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from huggingface_hub import HfApi, get_token, set_client_factory
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError
from huggingface_hub.utils import disable_progress_bars, validate_repo_id
from huggingface_hub.utils._http import default_client_factory

from megabert.downstream.export.export_folder import EXPORTED
from megabert.foundation.errors import ConfigError, DataError, without_secrets

SILENCE_S = 30
"""Seconds without a byte from the server, or with none taken."""
CALL_S = 120
"""Seconds for a call, in addition to its upload."""
START_S = 600
"""Seconds for all calls, in addition to uploads."""
LEAST_BYTES_PER_S = 50_000
"""The slowest upload that is waited for."""
MOST_ANSWER_BYTES = 16 << 20
"""The largest answer, decompressed."""


class AnswerLimits:
    """The limits of one push after the other."""

    def __init__(self) -> None:
        """Begin without uploads."""
        self.begin(0)

    def begin(self, upload_bytes: int) -> None:
        """Start the clock for all calls that follow."""
        self.exceeded = ""
        """The first limit that was exceeded, in words."""
        self._ends = time.monotonic() + START_S + upload_bytes / LEAST_BYTES_PER_S

    def apply(self, client: Any) -> Any:
        """Return an HTTP client of huggingface_hub whose calls are limited."""
        hooks = client.event_hooks
        client.event_hooks = {
            "request": [*hooks.get("request", ()), self._watch],
            "response": [*hooks.get("response", ()), self._bound],
        }
        client.timeout = SILENCE_S
        return client

    def _refuse(self, words: str) -> None:
        self.exceeded = self.exceeded or words
        raise ConnectionError(words)

    def _watch(self, request: Any) -> None:
        left = self._ends - time.monotonic()
        if left <= 0:
            self._refuse("all calls together took too long")
        seconds = CALL_S + int(request.headers.get("Content-Length") or 0) / LEAST_BYTES_PER_S
        request.headers["Connection"] = "close"  # so that the socket is known
        request.extensions["trace"] = _Watch(self, min(seconds, left))

    def _bound(self, response: Any) -> None:
        response.iter_raw = partial(self._counted, response.iter_raw)
        response.iter_bytes = partial(self._counted, response.iter_bytes)

    def _counted(self, read: Any, chunk_size: int | None = None) -> Iterator[bytes]:
        size = 0
        for part in read(chunk_size):
            size += len(part)
            if size > MOST_ANSWER_BYTES:
                self._refuse(f"the answer is larger than {MOST_ANSWER_BYTES >> 20} MiB")
            yield part


class _Watch:
    """Shuts the connection of one call down when its time is over. The client calls it with each event."""

    def __init__(self, limits: AnswerLimits, seconds: float) -> None:
        self._socket: socket.socket | None = None
        self._limits, self._seconds = limits, seconds
        self._timer = Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def __call__(self, event: str, info: dict[str, Any]) -> None:
        stream: Any = info.get("return_value")
        if hasattr(stream, "get_extra_info"):
            self._socket = stream.get_extra_info("socket")
        if event.endswith((".failed", "response_closed.complete")):
            self._timer.cancel()

    def _end(self) -> None:
        self._limits.exceeded = self._limits.exceeded or f"no whole answer within {self._seconds:.0f} s"
        if self._socket is not None:
            with suppress(OSError):  # it has just ended
                self._socket.shutdown(socket.SHUT_RDWR)


Hub = HfApi
"""A hub with a token that it has accepted."""
MAIN = "main"
_PASSING = {408, 409, 412, 429}
"""Refusals that pass: too slow, two commits at once, too many requests. All from 500 on pass, too."""
_BROKEN = (HTTPError, ConnectionError, TimeoutError, RuntimeError)
"""A transfer that failed: huggingface_hub wraps the errors of some uploads in a RuntimeError."""
_ADVICE = (
    "Check the network and HF_ENDPOINT, and set HF_HUB_DISABLE_XET=1 for a server that stores files by Git LFS alone; "
    "the same command continues."
)
_LIMITS = AnswerLimits()
_NO_HUB = (ValueError, TypeError, LookupError, AttributeError)
"""Errors of huggingface_hub about an answer that is not a Hub's: HTML, nothing, a list, an object without its keys."""
_MOST_CHARACTERS = 300
"""Characters of a server's answer in a message: some answer with a page."""


class PushTarget(NamedTuple):
    """Where a folder goes."""

    repo: str
    """``OWNER/NAME``."""
    revision: str | None = None
    """The branch of a checkpoint; None for a model without steps."""
    has_main: bool = True
    """Whether ``main``, which is loaded by default, takes this model."""
    is_private: bool = False
    """Whether a new repository is private."""

    @property
    def shown(self) -> str:
        """The branches, for messages."""
        return " and ".join(name for name in (self.revision, MAIN if self.has_main else None) if name)


def open_hub(repo: str) -> Hub:
    """Return the Hub, once it has accepted the user's token.

    Args:
        repo: ``OWNER/NAME``, which has to be a possible name.

    Raises:
        ConfigError: The name is impossible, nobody is logged in, or the Hub refuses the token.
        DataError: The Hub does not answer.
    """
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"--push {repo}: is no name on the Hub ({' '.join(str(error).split())}).") from None
    if "/" not in repo:
        raise ConfigError(f"--push {repo}: has no owner. Write OWNER/{repo}, with your name or your organization's.")
    api = HfApi(endpoint=_endpoint(), library_name="megabert")
    login = "Log in with `hf auth login`, or set HF_TOKEN to a token that may write"
    token = get_token()
    if not token:
        raise ConfigError(f"--push {repo}: you are not logged in to {_address(api)}. {login}.")
    if not re.fullmatch("[!-~]+", token):
        raise ConfigError(f"--push {repo}: your token has a character that no token has. {login}.")
    set_client_factory(lambda: _LIMITS.apply(default_client_factory()))
    _LIMITS.begin(0)
    try:
        name = api.whoami()["name"]
        if not isinstance(name, str):
            raise TypeError(f"it says that your name is {name!r}")
    except _BROKEN as error:
        if _status(error) in (401, 403):
            raise ConfigError(f"--push {repo}: {_address(api)} refuses your token. {login}.") from None
        raise DataError(f"{_address(api)}: cannot be reached ({_first_line(error)}). {_ADVICE}") from None
    except _NO_HUB as error:
        raise DataError(_no_hub(api, error)) from None
    return api


def _endpoint() -> str | None:
    """Return the address of another hub than Hugging Face's, if there is one."""
    url = os.environ.get("HF_ENDPOINT") or None
    with suppress(ValueError):  # the port is no number, or brackets are open
        if url is None or (urlsplit(url).scheme in ("http", "https") and urlsplit(url).port != 0):
            return url and url.rstrip("/")  # paths begin with a slash
    shown = re.sub(r".*@", "...@", url or "", flags=re.DOTALL)  # a password may come before the @
    raise ConfigError(f"HF_ENDPOINT={shown}: is no address of a server. Write it as https://huggingface.co.")


def push_folder(folder: Path, api: Hub, target: PushTarget, *, message: str) -> str:
    """Push an exported folder, and return the address of its page. The same call continues an interrupted one.

    Args:
        folder: The exported folder.
        api: The Hub, from `open_hub`.
        target: Repository and branches.
        message: Title of the commit.

    Raises:
        ConfigError: The Hub refuses the push, or the card.
        DataError: The connection broke again and again, or the card is not UTF-8.
    """
    disable_progress_bars()  # they would be written around the filter of the terminal
    logging.getLogger("huggingface_hub.utils._http").addFilter(_hide_secrets)  # it logs the addresses of retries
    page = f"{_address(api)}/{target.repo}"
    _LIMITS.begin(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # words of the server, which may repeat the token
            _publish(folder, api, target, message)
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(f"{folder}/README.md: is not UTF-8 (byte {byte:#04x}). Convert the file to UTF-8.") from None
    except _NO_HUB as error:
        if not str(error).startswith("Invalid metadata"):
            raise DataError(_no_hub(api, error)) from None
        # huggingface_hub asks before it uploads anything
        problems = " ".join(_without_secrets(str(error)).split())
        raise ConfigError(f"{folder}/README.md: was refused: {problems}. Nothing was uploaded.") from None
    except _BROKEN as error:
        status = _status(error)
        if status is None or status in _PASSING or status >= 500:
            raise DataError(f"{page}: the push broke off ({_first_line(error)}). {_ADVICE}") from None
        rights = "Use a token that may write there (`hf auth login`), or a repository of your own."
        remedy = rights if status in (401, 403, 404) else "The same command continues once that is solved."
        if status == 404 and "validate-yaml" in str(_cause(error)):
            remedy = "The server has no check of cards, so it is no Hub. Check HF_ENDPOINT."
        raise ConfigError(f"{page}: the push was refused ({_first_line(error)}). {remedy}") from None
    return page + (f"/tree/{target.revision}" if target.revision else "")


def _publish(folder: Path, api: Hub, target: PushTarget, message: str) -> None:
    """Do everything that is not there yet."""
    repo, revision = target.repo, target.revision
    api.create_repo(repo, private=target.is_private or None, exist_ok=True)
    if target.is_private and not api.model_info(repo).private:
        remedy = "Make it private in its settings, or leave --private out."
        raise ConfigError(f"--private: {_address(api)}/{repo} is there, and is public. {remedy}")
    # Files of an earlier export that this one lacks are deleted; files of the owner stay.
    upload = partial(
        api.upload_folder, repo_id=repo, folder_path=folder, commit_message=message, delete_patterns=sorted(EXPORTED)
    )
    branches = {ref.name for ref in api.list_repo_refs(repo).branches}
    draft = f"unfinished-{revision}"
    if revision in branches:
        upload(revision=revision)  # readers see the files before the commit or those after it
    elif revision and not target.has_main:
        # The branch begins at a commit that is whole: another one takes it first.
        api.create_branch(repo, branch=draft, exist_ok=True)
        api.create_branch(repo, branch=revision, revision=upload(revision=draft).oid, exist_ok=True)
        branches.add(draft)
    if target.has_main:
        commit = upload(revision=MAIN).oid
        if revision and revision not in branches:
            api.create_branch(repo, branch=revision, revision=commit, exist_ok=True)
    if draft in branches:
        api.delete_branch(repo, branch=draft)


def _cause(error: BaseException) -> BaseException:
    """Return the error of the transfer that a library's own error wraps."""
    while not isinstance(error, HTTPError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: BaseException) -> int | None:
    cause = _cause(error)
    return int(cause.response.status_code) if isinstance(cause, HfHubHTTPError) else None


def _hide_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = _without_secrets(record.getMessage()), ()
    return True


def _without_secrets(text: str) -> str:
    """Return a text without secrets of addresses and the token, which a server may repeat."""
    return without_secrets(text).replace(get_token() or "\0", "...")


def _no_hub(api: Hub, error: Exception) -> str:
    what = f"{type(error).__name__}: {_first_line(error)}"
    return f"{_address(api)}: is no Hub, its answer is not one of those ({what}). Check HF_ENDPOINT."


def _address(api: Hub) -> str:
    """Return the address of the Hub, for messages."""
    return without_secrets(api.endpoint)


def _first_line(error: BaseException) -> str:
    """Return the words of an error that say most, without secrets: the server's own, or else the first line."""
    cause = _cause(error)
    said = getattr(cause, "server_message", None) or next(filter(None, map(str.strip, str(cause).splitlines())), "")
    said = " ".join(_without_secrets(_LIMITS.exceeded or said).split())[:_MOST_CHARACTERS]
    status = _status(error)
    return f"{status}: {said}" if status and said else said or type(cause).__name__
