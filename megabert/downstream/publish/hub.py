"""Push an exported folder to the Hugging Face Hub, or to a server with the same interface (``HF_ENDPOINT``).

huggingface_hub transfers the files. Large ones go to the Hub's storage first, which knows them by their SHA-256 and
takes none twice; one commit then makes a branch show all files at once. A branch that is new appears only after its
commit. So readers of a revision see the whole push or nothing of it, and a push that was interrupted continues where
it stopped.
"""

import logging
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import disable_progress_bars, get_session, hf_raise_for_status, validate_repo_id

from megabert.downstream.export.export_folder import EXPORTED
from megabert.foundation.errors import ConfigError, DataError
from megabert.foundation.files import read_small
from megabert.foundation.path_arguments import takes_paths

logger = logging.getLogger(__name__)

Hub = HfApi
"""A hub with a token that it has accepted."""
LARGE = 10 << 20
"""Bytes of a file that is uploaded before the commit, so that a later failure can say that it is there. Smaller files
may travel within the commit; the Hub allows no larger ones there."""
WAITS_S = (2, 5, 15)
"""Pauses before a push is tried again. huggingface_hub itself tries each upload five times more."""
MAIN = "main"
_PASSING = {408, 409, 412, 429}
"""Refusals that pass: too slow, two commits at once, too many requests. All from 500 on pass, too."""
_BROKEN = (HTTPError, ConnectionError, TimeoutError, RuntimeError)
"""A transfer that failed: huggingface_hub wraps the errors of some uploads in a RuntimeError."""
_QUERY = re.compile(r"(https?://[^\s'\"?]*)\?[^\s'\"]*")
"""An address with a query. In the storage, the query has a signature that lets anybody write the file."""
_LOGIN = re.compile(r"(https?://)[^\s'\"/]*@")
"""An address with a name or a password before its server, as HF_ENDPOINT may have."""
_MOST_CHARACTERS = 300
"""Characters of a server's answer in a message: some answer with a page."""


@dataclass(frozen=True, kw_only=True)
class PushTarget:
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
    if not get_token():
        raise ConfigError(f"--push {repo}: you are not logged in to {_address(api)}. {login}.")
    try:
        api.whoami()
    except _BROKEN as error:
        if _status(error) in (401, 403):
            raise ConfigError(f"--push {repo}: {_address(api)} refuses your token. {login}.") from None
        raise DataError(f"{_address(api)}: cannot be reached ({_first_line(error)}). {_advice(error)}") from None
    except ValueError as error:  # the answer is no JSON
        raise DataError(f"{_address(api)}: is no Hub ({_first_line(error)}). Check HF_ENDPOINT.") from None
    return api


def _endpoint() -> str | None:
    """Return the address of another hub than Hugging Face's, if there is one."""
    url = os.environ.get("HF_ENDPOINT") or None
    try:
        is_url = url is None or (urlsplit(url).scheme in ("http", "https") and urlsplit(url).port != 0)
    except ValueError:  # the port is no number, or brackets are open
        is_url = False
    if not is_url:
        shown = re.sub(r".*@", "...@", url or "", flags=re.DOTALL)  # a password may come before the @
        raise ConfigError(f"HF_ENDPOINT={shown}: is no address of a server. Write it as https://huggingface.co.")
    return url and url.rstrip("/")  # paths begin with a slash


@takes_paths
def push_folder(folder: Path, api: Hub, target: PushTarget, *, message: str) -> str:
    """Push an exported folder, and return the address of its page.

    A failure that may pass is tried again. The same call continues an interrupted one.

    Args:
        folder: The exported folder.
        api: The Hub, from `open_hub`.
        target: Repository and branches.
        message: Title of the commit.

    Raises:
        ConfigError: The Hub refuses the push, or the card.
        DataError: The connection broke again and again.
    """
    disable_progress_bars()  # they would be written around the filter of the terminal
    logging.getLogger("huggingface_hub.utils._http").addFilter(_hide_secrets)  # it logs the addresses of retries
    push = _Push(folder, api, target, message)
    for wait in (*WAITS_S, None):
        try:
            push.publish()
            break
        except _BROKEN as error:
            if wait is None or not _passes(error):
                raise push.explained(error) from None
            logger.warning("%s: %s failed (%s); tried again in %d s", target.repo, push.doing, _first_line(error), wait)
            time.sleep(wait)
    branch = target.revision or MAIN
    return f"{_address(api)}/{target.repo}" + (f"/tree/{branch}" if branch != MAIN else "")


class _Push:
    """The order of a push, and how far it has come."""

    def __init__(self, folder: Path, api: Hub, target: PushTarget, message: str) -> None:
        self.folder, self.api, self.target, self.message = folder, api, target, message
        self.doing = "looking for the repository"
        self.done: dict[str, None] = {}
        """Files and branches that are there, in order."""

    def publish(self) -> None:
        """Do everything that is not there yet."""
        api, repo, revision = self.api, self.target.repo, self.target.revision
        self._check_card()
        self.doing = "making the repository"
        api.create_repo(repo, private=self.target.is_private or None, exist_ok=True)
        if self.target.is_private and not api.model_info(repo).private:
            remedy = "Make it private in its settings, or leave --private out."
            raise ConfigError(f"--private: {_address(api)}/{repo} is there, and is public. {remedy}")
        self.done["the repository"] = None
        branches = {ref.name for ref in api.list_repo_refs(repo).branches}
        draft = f"unfinished-{revision}"
        if revision in branches:
            self._commit(revision)  # readers see the files before the commit or those after it
        elif revision and not self.target.has_main:
            # The branch begins at a commit that is whole: another one takes it first.
            api.create_branch(repo, branch=draft, exist_ok=True)
            self._branch(revision, self._commit(draft))
            branches.add(draft)
        if self.target.has_main:
            commit = self._commit(MAIN)
            if revision and revision not in branches:
                self._branch(revision, commit)
        if draft in branches:
            self.doing = f"deleting {draft}"
            api.delete_branch(repo, branch=draft)

    def _check_card(self) -> None:
        """Let the Hub judge the card before anything is uploaded."""
        path = self.folder / "README.md"
        self.doing = f"checking {path}"
        try:
            text = read_small(path).decode()
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise DataError(f"{path}: is not UTF-8 (byte {byte:#04x}). Convert the file to UTF-8.") from None
        content = {"content": text, "repoType": "model"}
        hf_raise_for_status(get_session().post(f"{self.api.endpoint}/api/validate-yaml", json=content))

    def _commit(self, branch: str) -> str:
        """Give a branch the files of the folder, and return its commit. Without a change there is none."""
        repo = self.target.repo
        names = sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())
        additions = [CommitOperationAdd(name, self.folder / name) for name in names]
        for file in additions:
            if file.upload_info.size >= LARGE:
                self.doing = f"uploading {file.path_in_repo}"
                self.api.preupload_lfs_files(repo, [file], revision=branch, free_memory=False)
                self.done[f"{file.path_in_repo} ({file.upload_info.size / 1e6:.1f} MB)"] = None
        self.doing = f"committing to {branch}"
        # Files of an earlier export that this one lacks; files of the owner stay.
        stale = {*self.api.list_repo_files(repo, revision=branch)} & EXPORTED - {*names}
        deletions = [CommitOperationDelete(name) for name in sorted(stale)]
        commit = self.api.create_commit(repo, [*deletions, *additions], commit_message=self.message, revision=branch)
        self.done[branch] = None
        return str(commit.oid)

    def _branch(self, name: str, commit: str) -> None:
        self.doing = f"making the branch {name}"
        self.api.create_branch(self.target.repo, branch=name, revision=commit, exist_ok=True)
        self.done[name] = None

    def explained(self, error: Exception) -> ConfigError | DataError:
        """Return an error as a user reads it: the failure, the files that are there, and how to continue."""
        where, status = f"{_address(self.api)}/{self.target.repo}", _status(error)
        there = f"Already there: {', '.join(self.done)}. " if self.done else "Nothing was uploaded. "
        if status is None or _passes(error):
            return DataError(f"{where}: {self.doing} failed ({_first_line(error)}). {there}{_advice(error)}")
        rights = "Use a token that may write there (`hf auth login`), or a repository of your own."
        remedy = rights if status in (401, 403, 404) else "The same command continues once that is solved."
        return ConfigError(f"{where}: {self.doing} was refused ({_first_line(error)}). {there}{remedy}")


def _cause(error: BaseException) -> BaseException:
    """Return the error of the transfer that a library's own error wraps."""
    while not isinstance(error, HTTPError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: BaseException) -> int | None:
    cause = _cause(error)
    return int(cause.response.status_code) if isinstance(cause, HfHubHTTPError) else None


def _passes(error: BaseException) -> bool:
    status = _status(error)
    if status is None:
        return not isinstance(_cause(error), OfflineModeIsEnabled)
    return status in _PASSING or status >= 500


def _advice(error: BaseException) -> str:
    if isinstance(_cause(error), OfflineModeIsEnabled):
        return "Unset HF_HUB_OFFLINE."
    if "xet" in str(error):
        return "If this server stores files by Git LFS alone, set HF_HUB_DISABLE_XET=1. The same command continues."
    return "Check the network and HF_ENDPOINT; the same command continues."


def _without_secrets(text: str) -> str:
    return _LOGIN.sub(r"\1", _QUERY.sub(r"\1", text))


def _hide_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = _without_secrets(record.getMessage()), ()
    return True


def _address(api: Hub) -> str:
    """Return the address of the Hub, for messages."""
    return _without_secrets(api.endpoint)


def _first_line(error: BaseException) -> str:
    """Return the words of an error that say most, without secrets: the server's own, or else the first line."""
    cause = _cause(error)
    said = getattr(cause, "server_message", None) or next(filter(None, map(str.strip, str(cause).splitlines())), "")
    said = " ".join(_without_secrets(said).split())[:_MOST_CHARACTERS]
    status = _status(error)
    return f"{status}: {said}" if status and said else said or type(cause).__name__
