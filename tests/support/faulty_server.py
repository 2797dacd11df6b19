"""Servers on 127.0.0.1: files of a folder, and a proxy that spoils chosen responses, for fetching from other hosts."""

import http.client
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HANG_S = 3.0
"""Longer than the clients of the tests wait."""


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that has closed its connection."""


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[int]:
    """Yield the port of a server that answers."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serving_files(folder: Path, port: int = 0, certificate: tuple[Path, Path] | None = None) -> Iterator[int]:
    """Yield the port of a server of a folder's files; by https with a certificate and its key."""
    server = _Server(("127.0.0.1", port), partial(_Files, directory=str(folder)))
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server) as port:
        yield port


@dataclass
class Proxy:
    """Hands requests on to another port of this machine."""

    backend: int
    faults: list[tuple[str, str]] = field(default_factory=list)
    """Part of a request line such as ``GET /shard``, and ``403``, ``500``, ``503``, ``hang``, ``drop``, ``cut``,
    ``flip`` or ``short``; each is applied once, unless its kind ends with ``always``."""
    requests: list[str] = field(default_factory=list)
    """Request lines so far."""
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fault_of(self, line: str) -> str:
        """Note a request and return what goes wrong with its response."""
        with self.lock:
            self.requests.append(line)
            for index, (part, kind) in enumerate(self.faults):
                if part in line:
                    if not kind.endswith("always"):
                        del self.faults[index]
                    return kind.removesuffix(" always")
        return ""


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # which answers "Expect: 100-continue"

        def handle_any(self) -> None:
            kind = proxy.fault_of(f"{self.command} {self.path}")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if kind == "hang":
                time.sleep(HANG_S)
            if kind in ("hang", "drop"):
                self.close_connection = True
                return
            if kind in ("403", "500", "503"):
                self.send_error(int(kind))
                return
            backend = http.client.HTTPConnection("127.0.0.1", proxy.backend, timeout=20)
            try:
                backend.request(self.command, self.path, body or None, dict(self.headers))
                answer = backend.getresponse()
                content = answer.read()
            except OSError:
                self.close_connection = True
                return
            if kind == "flip" and content:
                content = content[:-1] + bytes([content[-1] ^ 1])
            half = content[: len(content) // 2]
            content = half if kind == "short" else content  # with a length that fits it
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.close_connection = True
            self.wfile.write(half if kind == "cut" else content)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def proxying(backend: int) -> Iterator[Proxy]:
    """Yield a proxy of a server on this machine."""
    proxy = Proxy(backend)
    with serving(_Server(("127.0.0.1", 0), _handler(proxy))) as proxy.port:
        yield proxy


@contextmanager
def serving_s3(bucket: str, folder: Path) -> Iterator[Proxy]:
    """Yield a proxy of a server that speaks S3 and has a folder's files in a bucket; the environment has its login."""
    import fsspec
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with proxying(server.get_host_and_port()[1]) as proxy:
            reset = http.client.HTTPConnection("127.0.0.1", proxy.backend, timeout=20)
            reset.request("POST", "/moto-api/reset")  # the buckets of a server before, in this process
            reset.getresponse().read()
            filesystem = fsspec.filesystem("s3", endpoint_url=proxy.url, skip_instance_cache=True)
            filesystem.mkdir(bucket)
            for path in folder.rglob("*"):
                if path.is_file():
                    filesystem.put_file(str(path), f"{bucket}/{path.relative_to(folder)}")
            proxy.requests.clear()
            yield proxy
    finally:
        server.stop()
