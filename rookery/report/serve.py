"""A run's page at an address of this machine, which follows the run: written anew when there is more to tell."""

import contextlib
import hashlib
import ipaddress
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from rookery.report.page import compose
from rookery.storage.run_dir import open_existing

_WAITING = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>rookery</title>'
    '<p style="font-family:system-ui;padding:2rem">Waiting for the run\'s first generation.</p>'
)
_PAGES = ("/", "/report.html")
_NO_MORE: Mapping[str, str] = {}


class _Made(NamedTuple):
    """A page, and of which state of the runs."""

    version: str
    text: str


class Pages:
    """The newest page of some runs, made when it is asked for; threads may ask at once.

    Args:
      run_dirs: their folders.
    """

    def __init__(self, run_dirs: Sequence[Path]):
        self._run_dirs = run_dirs
        self._made: _Made | None = None
        self._lock = threading.Lock()

    def version(self) -> str:
        """A text that is another one whenever the runs have written something."""
        told = hashlib.sha256()
        for run_dir in self._run_dirs:
            folder = open_existing(run_dir)
            files = (
                folder.metrics_file,
                folder.lineage_file,
                folder.cells_file,
                folder.repertoire_file,
                folder.journal_file,
                folder.episodes_file,
                folder.skills_file,
            )
            for file in files:
                stat = file.stat() if file.exists() else None
                told.update(repr((file.name, stat and (stat.st_size, stat.st_mtime_ns))).encode())
        return told.hexdigest()[:16]

    def page(self) -> str:
        """The page; one that waits, while a run has no generation to tell of."""
        with self._lock:
            version = self.version()
            if self._made is None or self._made.version != version:
                if not all(_has_begun(run_dir) for run_dir in self._run_dirs):
                    return _WAITING
                self._made = _Made(version, compose(self._run_dirs, {"version": version}))
            return self._made.text


def _has_begun(run_dir: Path) -> bool:
    metrics = open_existing(run_dir).metrics_file
    return metrics.exists() and metrics.read_bytes().count(b"\n") > 1


def server(run_dirs: Sequence[str | Path], host: str = "127.0.0.1", port: int = 8000) -> ThreadingHTTPServer:
    """A server of the page and of nothing else; `serve_forever()` runs it, `server_address` says where it listens.

    Args:
      run_dirs: folders of runs, which may not have finished a generation yet.
      host: the address to listen at. On loopback only requests that name this machine are answered, so that no page of
        another site can read it through a name of its own.
      port: 0 takes any that is free.

    Raises:
      ValueError: a folder is no run, or nothing can listen there.
    """
    paths = [open_existing(run_dir).path for run_dir in run_dirs]
    handler = type("Handler", (_Handler,), {"pages": Pages(paths), "host": host})
    kind = type("Server", (ThreadingHTTPServer,), {"address_family": _family(host), "daemon_threads": True})
    try:
        return kind((host, port), handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"nothing can listen at {host}, port {port}: {reason}; choose another --port or --host."
        ) from error


def _family(host: str) -> int:
    import socket

    return socket.AF_INET6 if ":" in host else socket.AF_INET


class _Handler(BaseHTTPRequestHandler):
    """Two answers: the page, and which version of it is the newest."""

    pages: Pages
    host: str

    def do_GET(self) -> None:
        """Answer, or say that there is no such thing."""
        path = self.path.partition("?")[0]
        if is_loopback(self.host) and not is_loopback(_name(self.headers.get("Host", ""))):
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", "This page is for this machine only.")
        if path == "/version":
            return self._try("text/plain", self.pages.version)
        if path in _PAGES:
            return self._try("text/html", self.pages.page)
        return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "There is only the report here.")

    def _try(self, kind: str, make: Callable[[], str]) -> None:
        try:
            text = make()
        except (ValueError, OSError) as error:  # a table is being written, or is damaged: a browser asks again
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error), {"Refresh": "2"})
        return self._answer(HTTPStatus.OK, kind, text)

    def _answer(self, status: HTTPStatus, kind: str, text: str, more: Mapping[str, str] = _NO_MORE) -> None:
        body = text.encode()
        told = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), "Cache-Control": "no-store"}
        self.send_response(status)
        for name, value in {**told, "X-Content-Type-Options": "nosniff", **more}.items():
            self.send_header(name, value)
        with contextlib.suppress(ConnectionError):  # who asked may have gone
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of single requests."""


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine, as only itself can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
