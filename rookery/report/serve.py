"""HTTP server of a report page, which is rebuilt whenever a run has written new results."""

import contextlib
import hashlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rookery.report.page import compose
from rookery.report.readers import open_run
from rookery.settings import SettingError, verbatim
from rookery.storage.island_files import islands_of
from rookery.storage.run_dir import open_existing

_WAITING = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>rookery</title>'
    '<p style="font-family:system-ui;padding:2rem">Waiting for the run\'s first generation.</p>'
)
_PAGES = ("/", "/report.html")


class Pages:
    """The current page of some runs, built on request and cached; thread-safe."""

    def __init__(self, run_dirs: Sequence[Path]):
        self._run_dirs = run_dirs
        self._built_from = self._text = ""
        self._lock = threading.Lock()

    def version(self) -> str:
        """A digest that changes whenever one of the runs has written a file."""
        digest = hashlib.sha256()
        for run_dir in [path for run in self._run_dirs for path in (run, *islands_of(run))]:
            folder = open_existing(run_dir)
            files = (
                folder.metrics_file,
                folder.lineage_file,
                folder.cells_file,
                folder.repertoire_file,
                folder.journal_file,
                folder.episodes_file,
                folder.evaluation_file,
                folder.skills_file,
            )
            for file in files:
                with contextlib.suppress(FileNotFoundError):  # a run that begins anew removes its tables
                    stat = file.stat()
                    digest.update(repr((file.name, stat.st_size, stat.st_mtime_ns)).encode())
        return digest.hexdigest()[:16]

    def page(self) -> str:
        """The page, or a placeholder while a run has no finished generation."""
        with self._lock:
            version = self.version()
            if self._built_from != version:
                if not all(open_run(run_dir).has_generation for run_dir in self._run_dirs):
                    return _WAITING
                self._built_from, self._text = version, compose(self._run_dirs, {"version": version})
            return self._text


def server(run_dirs: Sequence[str | Path], host: str = "127.0.0.1", port: int = 8000) -> ThreadingHTTPServer:
    """A server of the report page; `serve_forever()` runs it, `server_address` is its address.

    Args:
      run_dirs: run directories; runs may have no finished generation yet.
      host: the address to listen on. On a loopback address, only requests whose Host header is a loopback name are
        answered, which prevents DNS rebinding by other sites.
      port: the port; 0 for any free one.

    Returns:
      The server, already bound to its address.

    Raises:
      ValueError: a folder is not a run, or the address is not available.
    """
    paths = [open_existing(run_dir).path for run_dir in run_dirs]
    handler = type("Handler", (_Handler,), {"pages": Pages(paths), "host": host})
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    kind = type("Server", (ThreadingHTTPServer,), {"address_family": family, "daemon_threads": True})
    try:
        return kind((host, port), handler)
    except (OSError, OverflowError, TypeError) as error:  # TypeError: no name of a host has such characters
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        raise SettingError(
            "port", port, f"cannot be used on {verbatim(host)}: {verbatim(reason)}", "choose another, or another {host}"
        ) from error


class _Handler(BaseHTTPRequestHandler):
    """Serves the page and its current version."""

    pages: Pages
    host: str

    def do_GET(self) -> None:
        """Serve the page or its version; any other path is not found."""
        path = self.path.partition("?")[0]
        if is_loopback(self.host) and not is_loopback(_name(self.headers.get("Host", ""))):
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", "This page is available on this machine only.")
        if path == "/version":
            return self._try("text/plain", self.pages.version)
        if path in _PAGES:
            return self._try("text/html", self.pages.page)
        return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "Only the report is served here.")

    def _try(self, kind: str, make: Callable[[], str]) -> None:
        try:
            text = make()
        except (ValueError, OSError) as error:  # a table is being written, or is damaged: let the browser retry
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error), Refresh="2")
        return self._answer(HTTPStatus.OK, kind, text)

    def _answer(self, status: HTTPStatus, kind: str, text: str, **more: str) -> None:
        body = text.encode()
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        headers |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        self.send_response(status)
        for name, value in (headers | more).items():
            self.send_header(name, value)
        with contextlib.suppress(ConnectionError):  # the client may have disconnected
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


def is_loopback(host: str) -> bool:
    """Whether a host name or address is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _name(host: str) -> str:
    """The host name in a Host header, without its port."""
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
