"""A stand-in for the Hugging Face Hub: what huggingface_hub asks of it over HTTP to push a model and to load it back.

It has repositories with branches and commits, the storage of large files (Git LFS, basic transfers), and the check of
cards, by huggingface_hub's own parser. Storage by chunks (Xet) it has not: clients need ``HF_HUB_DISABLE_XET=1``.
A test can let requests fail, and reads from `requests` which were made.
"""

import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml
from flask import Flask, Response, request
from huggingface_hub import ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results
from support.faulty_server import serving
from werkzeug.serving import WSGIRequestHandler, make_server

TOKEN = "hf_stand_in"
OWNER = "owner"
SIGNATURE = ""
"""Query of the addresses in the storage, such as ``?X-Signature=...``."""
GIT_ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
LARGE = re.compile(r".*\.(safetensors|onnx|data|bin)")
"""Names of the files that go to the storage of large files."""

Files = dict[str, bytes]


@dataclass
class Repository:
    """A model's repository."""

    is_private: bool
    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    titles: list[str] = field(default_factory=list)
    storage: Files = field(default_factory=dict)
    """Large files by their SHA-256."""

    def commit(self, branch: str, files: Files, title: str) -> str:
        content = repr((title, len(self.titles), sorted((name, sha256(value)) for name, value in files.items())))
        oid = hashlib.sha1(content.encode()).hexdigest()
        self.commits[oid], self.branches[branch] = files, oid
        self.titles.append(title)
        return oid

    def oid_of(self, revision: str) -> str:
        if revision in self.branches or revision in self.commits:
            return self.branches.get(revision, revision)
        raise Refusal(404, f"no revision {revision}", "RevisionNotFound")


class Refusal(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass
class Fault:
    """What happens to the next requests of a kind."""

    pattern: str
    """Expression for method and path, such as ``PUT /storage/``."""
    status: int | None = None
    """Answered instead; None breaks the connection in the middle of the request's body."""
    times: int = 1
    says: str = "planted"
    """Words of the answer; the empty string answers without any."""
    answer: bytes | None = None
    """The whole body of the answer, with status 200 unless another is given."""
    waits: threading.Event | None = None
    """If given, the request is not answered before it is set."""


class HubServer:
    """The server; `running` starts one."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        """Method and path of each request, in order."""
        self.stored_bytes = 0
        """Bytes of large files that were taken."""
        self.faults: list[Fault] = []
        self.reached = threading.Event()
        """Set when a request waits."""
        self.lock = threading.Lock()
        self.server = make_server("127.0.0.1", 0, self.app(), threaded=True, request_handler=Silent)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def app(self) -> Flask:
        app = Flask(__name__)
        methods = ["GET", "HEAD", "POST", "PUT", "DELETE"]
        app.add_url_rule("/<path:path>", view_func=lambda path: _answer(self, f"/{path}"), methods=methods)
        return app

    def fault_of(self, request: str) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, request):
                    fault.times -= 1
                    return fault
        return None

    def count(self, pattern: str) -> int:
        """Return how many requests of a kind were made."""
        return sum(bool(re.search(pattern, request)) for request in self.requests)

    def repository(self, name: str) -> Repository:
        if name not in self.repositories:
            raise Refusal(404, f"no repository {name}", "RepoNotFound")
        return self.repositories[name]


class Silent(WSGIRequestHandler):
    """One connection, kept for further requests and not logged."""

    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def running() -> Iterator[HubServer]:
    """Run a stand-in on a free port of this machine."""
    hub = HubServer()
    with serving(hub.server):
        yield hub


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _answer(hub: HubServer, path: str) -> Response:
    """Answer a request by its fault, if it has one, or by its route."""
    line = f"{request.method} {path}"
    fault = hub.fault_of(line)
    if fault is not None and fault.waits is not None:
        hub.reached.set()
        fault.waits.wait(30)
    if fault is not None and fault.answer is None and fault.status is None:
        request.stream.read((request.content_length or 0) // 2)
        request.environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return Response()
    body = request.get_data()
    if fault is not None and fault.answer is not None:
        return Response(fault.answer, fault.status or 200)
    try:
        if fault is not None:
            raise Refusal(fault.status or 500, fault.says)
        with hub.lock:
            answer = _route(hub, line, body)
        return answer if isinstance(answer, Response) else _json(answer)
    except Refusal as refusal:
        words = {"X-Error-Code": refusal.code, "X-Error-Message": str(refusal)} if str(refusal) else {}
        return _json({"error": str(refusal)} if words else {}, refusal.status, words)


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(content), status, headers)


def _route(hub: HubServer, line: str, body: bytes) -> Any:
    for pattern, needs_token, function in ROUTES:
        if match := re.fullmatch(pattern, line):
            names = [part for part in match.groups() if part]
            is_signed = "/storage/" in line  # an address of the storage is a secret of its own
            is_hidden = any(hub.repositories[name].is_private for name in names[:1] if name in hub.repositories)
            is_closed = needs_token or (is_hidden and not is_signed)
            if is_closed and request.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refusal(401, "Invalid credentials in Authorization header")
            content = json.loads(body) if body.startswith(b"{") and b"\n{" not in body else body
            return function(hub, content, *names)
    raise Refusal(404, f"no route for {line}")


def _create(hub: HubServer, body: dict[str, Any]) -> Any:
    owner = body["organization"] or OWNER
    name = f"{owner}/{body['name']}"
    if owner != OWNER:
        raise Refusal(403, f"You don't have the rights to create a model under the namespace {owner!r}")
    answer = {"url": f"{hub.url}/{name}", "name": name}
    if name in hub.repositories:
        return _json(answer, 409)
    repository = hub.repositories[name] = Repository(body.get("visibility") == "private")
    repository.commit("main", {".gitattributes": GIT_ATTRIBUTES}, "initial commit")
    return answer


def _validate_card(hub: HubServer, body: dict[str, Any]) -> Any:
    """Judge a card as the Hub does: the header is YAML, and its ``model-index`` is complete."""
    try:
        header = yaml.safe_load(body["content"].split("---\n")[1])
        ModelCardData(**header)
        model_index_to_eval_results(header.get("model-index") or [{"name": "none", "results": []}])
    except (yaml.YAMLError, IndexError, KeyError, TypeError, ValueError) as error:
        return _json({"errors": [{"message": str(error)}]}, 400)
    if header.get("license") not in (None, "apache-2.0", "mit"):
        return _json({"errors": [{"message": '"license" must be one of [apache-2.0, mit]'}]}, 400)
    return {"errors": [], "warnings": []}


def _preupload(hub: HubServer, body: dict[str, Any], name: str, revision: str) -> Any:
    repository = hub.repository(name)
    there = repository.commits[repository.oid_of(revision)]
    answers = []
    for file in body["files"]:
        path, is_large = file["path"], bool(LARGE.fullmatch(file["path"]))
        answer = {"path": path, "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False}
        if path in there:
            answer["oid"] = (sha256 if is_large else git_hash)(there[path])
        answers.append(answer)
    return {"files": answers}


def _batch(hub: HubServer, body: dict[str, Any], name: str) -> Any:
    storage, objects = hub.repository(name).storage, []
    for one in body["objects"]:
        actions = {"upload": {"href": f"{hub.url}/storage/{name}/{one['oid']}{SIGNATURE}"}}
        objects.append(one if one["oid"] in storage else {**one, "actions": actions})
    return {"transfer": "basic", "objects": objects}


def _store(hub: HubServer, body: bytes, name: str, oid: str) -> Any:
    if sha256(body) != oid:
        raise Refusal(400, "the content has another hash")
    hub.stored_bytes += len(body)
    hub.repository(name).storage[oid] = body
    return {}


def _commit(hub: HubServer, body: bytes, name: str, branch: str) -> Any:
    repository = hub.repository(name)
    files, title = dict(repository.commits[repository.oid_of(branch)]), ""
    for line in body.splitlines():
        item = json.loads(line)
        value = item["value"]
        match item["key"]:
            case "header":
                title = value["summary"]
            case "file":
                files[value["path"]] = base64.b64decode(value["content"])
            case "lfsFile":
                if value["oid"] not in repository.storage:
                    raise Refusal(400, f"{value['path']} is not in the storage")
                files[value["path"]] = repository.storage[value["oid"]]
            case "deletedFile":
                del files[value["path"]]
    oid = repository.commit(branch, files, title)
    return {"commitUrl": f"{hub.url}/{name}/commit/{oid}", "commitOid": oid}


def _make_branch(hub: HubServer, body: dict[str, Any] | bytes, name: str, branch: str) -> Any:
    repository = hub.repository(name)
    if branch in repository.branches:
        raise Refusal(409, f"Reference already exists: {branch}")
    start = body.get("startingPoint", "main") if isinstance(body, dict) else "main"
    repository.branches[branch] = repository.oid_of(start)
    return {}


def _delete_branch(hub: HubServer, _: Any, name: str, branch: str) -> Any:
    del hub.repository(name).branches[branch]
    return {}


def _refs(hub: HubServer, _: Any, name: str) -> Any:
    branches = hub.repository(name).branches.items()
    rows = [{"name": branch, "ref": f"refs/heads/{branch}", "targetCommit": oid} for branch, oid in branches]
    return {"branches": rows, "converts": [], "tags": []}


def _info(hub: HubServer, _: Any, name: str, revision: str = "main") -> Any:
    repository = hub.repository(name)
    oid = repository.oid_of(revision)
    files = [{"rfilename": path} for path in repository.commits[oid]]
    return {"id": name, "sha": oid, "private": repository.is_private, "siblings": files, "tags": [], "downloads": 0}


def _tree(hub: HubServer, _: Any, name: str, revision: str, folder: str = "") -> Any:
    repository = hub.repository(name)
    files = repository.commits[repository.oid_of(revision)]
    rows = [
        {"type": "file", "path": path, "size": len(content), "oid": git_hash(content)}
        for path, content in files.items()
        if path.startswith(folder)
    ]
    if not rows:
        raise Refusal(404, f"no folder {folder}", "EntryNotFound")
    return rows


def _resolve(hub: HubServer, _: Any, name: str, revision: str, path: str) -> Any:
    repository = hub.repository(name)
    oid = repository.oid_of(revision)
    content = repository.commits[oid].get(path)
    if content is None:
        raise Refusal(404, f"no file {path}", "EntryNotFound")
    headers = {"ETag": f'"{git_hash(content)}"', "X-Repo-Commit": oid, "Accept-Ranges": "bytes"}
    return Response(content, 200, headers)


NAME = r"([\w.-]+/[\w.-]+)"
API = f"/api/models/{NAME}"
ROUTES: tuple[tuple[str, bool, Callable[..., Any]], ...] = (
    ("GET /api/whoami-v2", True, lambda hub, body: {"type": "user", "name": OWNER, "orgs": []}),
    ("POST /api/repos/create", True, _create),
    ("POST /api/validate-yaml", False, _validate_card),
    (f"POST {API}/preupload/([^/]+)", True, _preupload),
    (rf"POST /{NAME}\.git/info/lfs/objects/batch", True, _batch),
    (f"PUT /storage/{NAME}/([0-9a-f]+)", False, _store),
    (f"POST {API}/commit/([^/]+)", True, _commit),
    (f"POST {API}/branch/([^/]+)", True, _make_branch),
    (f"DELETE {API}/branch/([^/]+)", True, _delete_branch),
    (f"GET {API}/refs", False, _refs),
    (f"GET {API}/tree/([^/]+)(?:/(.+))?", False, _tree),
    (f"GET {API}/revision/([^/]+)", False, _info),
    (f"GET {API}", False, _info),
    (f"(?:GET|HEAD) /{NAME}/resolve/([^/]+)/(.+)", False, _resolve),
)
"""Method and path, whether a token is needed, and the answer."""
