"""The server of a page: it follows the run, answers requests for this machine only, and serves nothing else."""

import http.client
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rookery.report import serve
from rookery.report.serve import Pages, server
from rookery.storage.run_dir import create
from tests.written_runs import MEMBERS, write, write_repertoire


@pytest.fixture
def run(tmp_path):
    return write(tmp_path / "run", members=MEMBERS)


@pytest.fixture
def serving():
    """A function that serves runs in a thread until the test ends and returns the port."""
    started = []

    def start(runs, host="127.0.0.1"):
        listening = server(runs, host, 0)
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        started.append((listening, thread))
        return listening.server_address[1]

    yield start
    for listening, thread in started:
        listening.shutdown()
        listening.server_close()
        thread.join()


def request(port, path="/", method="GET", host=None, at="127.0.0.1"):
    """Status, body and headers of an answer."""
    connection = http.client.HTTPConnection(at, port, timeout=10)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    result = answer.status, answer.read().decode(), answer.headers
    connection.close()
    return result


class TestAnswers:
    def test_the_page_and_its_version_are_served_and_nothing_else(self, run, serving):
        port = serving([run])
        status, page, headers = request(port)
        assert (status, headers["Content-Type"], headers["Cache-Control"]) == (
            200,
            "text/html; charset=utf-8",
            "no-store",
        )
        assert page.startswith("<!doctype html>")
        assert int(headers["Content-Length"]) == len(page.encode())
        status, version, headers = request(port, "/version")
        assert (status, headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        assert f'"live":{{"version":"{version}"}}' in page
        assert [request(port, path)[:2] for path in ("/report.html", "/?a=b#c")] == [(200, page)] * 2
        for path in ("/config.json", "/../run/config.json", "/..%2Fconfig.json", "//config.json", "/report.html/"):
            assert request(port, path)[:2] == (404, "Only the report is served here."), path
        assert not (run / "report.html").exists(), "nothing is written"
        for method in ("HEAD", "POST", "DELETE"):
            status, body, _ = request(port, method=method)
            assert (status, "data" in body) == (501, False)

    def test_only_requests_for_a_loopback_host_are_answered(self, run, serving):
        port = serving([run])
        for host in ("localhost", "127.0.0.1", f"localhost:{port}", f"[::1]:{port}"):
            assert request(port, "/version", host=host)[0] == 200, host
        for host in (f"evil.example:{port}", "localhost.evil.example", "", "[::2]", "127.0.0.1.evil"):
            for path in ("/", "/version", "/nothing"):
                assert request(port, path, host=host)[:2] == (403, "This page is available on this machine only."), host

    def test_other_addresses(self, run, serving):
        assert request(serving([run], "0.0.0.0"), "/version", host="evil.example")[0] == 200
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind(("::1", 0))
            except OSError:
                pytest.skip("this machine has no IPv6")
        assert request(serving([run], "::1"), "/version", at="::1")[0] == 200

    def test_a_client_that_disconnects_has_no_effect_on_others(self, run, serving, monkeypatch, capfd):
        began, go_on = threading.Event(), threading.Event()

        def slow(*_):
            began.set()
            assert go_on.wait(10)
            return "x" * 10_000_000

        monkeypatch.setattr(serve, "compose", slow)
        port = serving([run])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")  # closes at once
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert began.wait(10)
        go_on.set()
        assert request(port)[0] == 200
        assert capfd.readouterr().err == ""


class TestFollows:
    def test_the_version_changes_whenever_a_file_was_written(self, run):
        pages = Pages([run])
        versions = [pages.version()]
        assert pages.version() == versions[0]
        tables = ("metrics.csv", "lineage.csv", "cells.csv", "repertoire.csv", "skills.csv")
        for name in (*tables, "journal.jsonl", "episodes.npz"):
            with open(run / name, "a") as file:
                file.write("\n")
            versions.append(pages.version())
        assert len(set(versions)) == 1 + 7
        size = (run / "metrics.csv").stat().st_size
        os.utime(run / "metrics.csv", ns=(0, 1))
        assert pages.version() not in versions, "rewritten at the same size"
        assert (run / "metrics.csv").stat().st_size == size
        (run / "report.html").write_text("x")
        assert pages.version() == pages.version()

    def test_it_waits_for_the_first_generation(self, tmp_path, serving):
        create(tmp_path / "run", {}).release()
        port = serving([tmp_path / "run"])
        for text in (None, "", "generation,env_steps\n", "generation,env_steps\n0,1"):
            if text is not None:
                (tmp_path / "run/metrics.csv").write_text(text)
            status, page, _ = request(port)
            assert (status, "Waiting for the run" in page, 'http-equiv="refresh"' in page) == (200, True, True)
        write(tmp_path / "run")
        assert "Best fitness 2" in request(port)[1]

    def test_a_damaged_table_and_a_run_that_is_moved_away_are_reported_and_the_browser_retries(self, run, serving):
        port = serving([run])
        text = (run / "metrics.csv").read_text()
        (run / "metrics.csv").write_text(f"{text}3,what\n")
        status, message, headers = request(port)
        assert (status, headers["Refresh"], headers["Content-Type"]) == (503, "2", "text/plain; charset=utf-8")
        assert message == f"{run / 'metrics.csv'}, line 5 has 2 fields instead of 7; correct or delete it."
        (run / "metrics.csv").write_text(text)
        assert request(port)[0] == 200
        run.rename(run.with_name("elsewhere"))
        assert [request(port, path)[0] for path in ("/", "/version")] == [503, 503]

    def test_simultaneous_requests_compose_the_page_once(self, run, serving, monkeypatch):
        composed = []

        def slow(runs, live):
            composed.append(live["version"])
            time.sleep(0.2)
            return f"page {len(composed)}"

        monkeypatch.setattr(serve, "compose", slow)
        port = serving([run])
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: request(port)[1], range(4)))
        assert (answers, len(composed)) == (["page 1"] * 4, 1)
        write_repertoire(run)
        assert request(port)[1] == "page 2"
        assert len(set(composed)) == 2


def test_what_cannot_be_served(run):
    with server([run], port=0) as listening:
        host, port = listening.server_address[:2]
        assert host == "127.0.0.1", "by default"
        assert listening.daemon_threads, "open requests do not delay Ctrl-C"
        message = rf"^port cannot be used on 127\.0\.0\.1: Address already in use, got {port}; choose another"
        with pytest.raises(ValueError, match=message):
            server([run], port=port)
    for host, port in (("127.0.0.1", 65536), ("no such host", 0), ("é" * 70, 0)):
        with pytest.raises(ValueError, match=rf"^(port|host) cannot be used.*, got '?({port}|{host})'?; choose"):
            server([run], host, port)
