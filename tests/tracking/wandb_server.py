"""A server that answers wandb as W&B does, as far as a run needs it, and records the steps that it gets."""

import contextlib
import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

NO_UPLOADS = {"cliVersionInfo": {}, "latestLocalVersionInfo": None}


class Received:
    """The address of a server, and what it got.

    Attributes:
      url: of the server.
      steps: of the history, in the order of their arrival.
      ids: of the W&B runs.
    """

    def __init__(self, server: http.server.HTTPServer):
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.steps: list[int] = []
        self.ids: set[str] = set()
        self._server = server

    def stop(self) -> None:
        """Refuse all further requests."""
        self._server.shutdown()
        self._server.server_close()


def _answer(received: Received, path: str, body: dict[str, Any]) -> dict[str, Any]:
    if path.endswith("file_stream"):
        history = body.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
        received.steps += [json.loads(line)["_step"] for line in history]
        return {"limits": {}, "exitcode": None}
    query, given = body.get("query", ""), body.get("variables") or {}
    if "upsertBucket" in query:
        received.ids.add(given["name"] or given["id"])
        project = {"id": "p", "name": "birds", "entity": {"id": "e", "name": "team"}}
        bucket = {"id": given["name"], "name": given["name"], "displayName": "run", "config": "{}", "project": project}
        bucket |= {"description": "", "sweepName": None, "historyLineCount": 0}
        return {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
    if "createRunFiles" in query:
        files = [{"name": name, "uploadUrl": f"{received.url}/upload"} for name in given["files"]]
        return {"data": {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}}
    viewer = {"id": "v", "entity": "team", "username": "me", "flags": "{}", "teams": {"edges": []}}
    return {"data": {"viewer": viewer, "serverInfo": {**NO_UPLOADS, "features": []}, "model": None, "project": None}}


@contextlib.contextmanager
def serve() -> Iterator[Received]:
    """Run a server in a thread."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            raw = gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw
            is_json = "json" in self.headers.get("Content-Type", "") and raw[:1] == b"{"
            answer = json.dumps(_answer(received, self.path, json.loads(raw)) if is_json else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_PUT = do_POST  # noqa: N815

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = Received(server)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield received
    finally:
        received.stop()
