"""`report.html`: one self-contained file, written atomically; its errors, and the commands that write it."""

import os
import re
import signal
from html.parser import HTMLParser
from pathlib import Path

import pytest

import rookery
import rookery.running
from benchmarks.report import write_run
from rookery.deploy.episodes import BUDGET
from rookery.report.figures.curves import draw_curves
from rookery.report.page import check_runs, compose, write_report
from rookery.storage.run_dir import create
from tests.commandline import call
from tests.storage.saved_states import save_all
from tests.written_runs import MEMBERS, METRICS, write, write_repertoire

WEB = Path(rookery.__file__).parent / "report" / "web"


class Parts(HTMLParser):
    """Every tag of a page with its attributes, and the text of each script and style."""

    def __init__(self, page: str):
        HTMLParser.__init__(self)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append((self.tags[-1][0] if self.tags else "", data))

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


class TestPath:
    def test_default_paths_for_one_run_and_for_several_and_duplicates(self, tmp_path, monkeypatch):
        runs = [write(tmp_path / name) for name in "ab"]
        monkeypatch.chdir(tmp_path)
        assert write_report(["a"]) == tmp_path / "a/report.html"
        assert write_report(runs) == tmp_path / "report.html"
        assert write_report(["a"], "page.html", refresh=7) == tmp_path / "page.html"
        assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "report.html", "page.html"}
        lives = [(tmp_path / name).read_text().count('"live":{"every":7}') for name in ("a/report.html", "page.html")]
        assert lives == [0, 1]
        (tmp_path / "c").symlink_to(runs[0])
        assert check_runs(["a", runs[0], tmp_path / "c", "../" + tmp_path.name + "/a"]) == [runs[0]]

    def test_the_file_is_written_atomically(self, tmp_path, monkeypatch):
        run = write(tmp_path / "run")
        before = write_report([run]).read_text()
        files = sorted(run.iterdir())

        def refuse(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("rookery.storage.run_dir.os.replace", refuse)
        with pytest.raises(ValueError, match=r"report\.html cannot be written: No space left on device; choose"):
            write_report([run])
        assert (run / "report.html").read_text() == before
        assert sorted(run.iterdir()) == files


class TestLosses:
    """A page, and the curves, are made from the rows that are there; the page says which are not."""

    @pytest.mark.parametrize(
        ("name", "lose", "note"),
        [
            ("metrics.csv", lambda text: text[:-20], "end with generation 1, though the checkpoint is of generation 3"),
            ("metrics.csv", lambda text: re.sub("\n1,.*", "", text), "metrics.csv has lost the rows of generation 1"),
            (
                "lineage.csv",
                lambda text: text[: text.index("\n1,") + 1],
                "lost the rows of 2 generations between 1 and 2",
            ),
            ("lineage.csv", lambda _: "", "lineage.csv has lost all rows"),
            ("lineage.csv", None, "lineage.csv has lost all rows"),
            ("lineage.csv", lambda text: text.replace("\n2,0,", "\n1,garbage\n2,0,"), "lineage.csv, line"),
            ("lineage.csv", lambda text: text.partition("\n")[2], "lineage.csv lacks the columns generation, member"),
        ],
    )
    def test_a_page_is_made_of_what_is_left(self, tmp_path, name, lose, note):
        run = write(tmp_path / "run", metrics=METRICS | {"replaced": [0.0] * 3}, members=MEMBERS)
        save_all(run / "checkpoints", 3)
        path = run / name
        path.write_text(lose(path.read_text())) if lose else path.unlink()
        assert note in write_report([run]).read_text()
        assert draw_curves(run).exists()
        (run / "metrics.csv").unlink()
        with pytest.raises(ValueError, match=r"run has lost all rows of metrics\.csv; put a copy of the file back, or"):
            write_report([run])


class TestErrors:
    def test_a_generation_far_beyond_the_rows_is_named(self, tmp_path):
        run = write(tmp_path / "run")
        table = run / "metrics.csv"
        last = table.read_text().splitlines()[-1]
        with table.open("a") as file:  # all rows between would not fit into memory
            file.write(f"900000000{last[last.index(',') :]}\n")
        with pytest.raises(
            ValueError, match=r"metrics\.csv, column generation is damaged: 900000000 is far beyond its "
        ):
            write_report([run])

    def test_runs_that_cannot_be_reported(self, tmp_path):
        with pytest.raises(ValueError, match=r"^there is no run to report on; give the folder of at least one\.$"):
            write_report([])
        with pytest.raises(ValueError, match=r"nothing is not a run directory: there is no such folder"):
            write_report(str(tmp_path / "nothing"))  # one folder is a list of one
        write(tmp_path / "walker")
        with pytest.raises(ValueError, match=rf"runs near it are {re.escape(str(tmp_path / 'walker'))}\.$"):
            write_report([tmp_path / "wlaker"])
        create(tmp_path / "run", {}).release()  # without a table
        with pytest.raises(ValueError, match="no finished generation to report yet; wait for its first"):
            write_report([tmp_path / "run"])
        assert check_runs([tmp_path / "run"], begun=False) == [tmp_path / "run"]

    def test_a_page_in_the_place_of_a_file_of_the_run(self, tmp_path):
        run = write(tmp_path / "run")
        with pytest.raises(ValueError, match=r"a page is an \.html file, got .*run/config\.json; choose this suffix"):
            write_report([run], run / "config.json")


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    run = write(tmp_path_factory.mktemp("page") / "run", members=MEMBERS)
    write_repertoire(run)
    return write_report([run]).read_text(encoding="utf-8")


class TestSelfContained:
    def test_it_refers_to_no_other_file_or_address(self, page):
        parts = Parts(page)
        for tag, attributes in parts.tags:
            for name, value in attributes.items():
                if name in ("src", "href", "srcset", "action", "formaction", "data", "poster", "background", "ping"):
                    assert (value or "").startswith(("data:", "#")), f"<{tag} {name}={value}>"
        assert parts.of("script") == [{"type": "application/json", "id": "data"}, {}, {}]
        assert [attributes["rel"] for attributes in parts.of("link")] == ["icon"]
        styles = "".join(text for tag, text in parts.texts if tag == "style")
        assert "--ink" in styles
        assert not re.search(r"@import|url\(", styles)

    def test_its_policy_allows_requests_to_its_server_only(self, page):
        (policy,) = (
            tag["content"] for tag in Parts(page).of("meta") if tag.get("http-equiv") == "Content-Security-Policy"
        )
        rules = dict(rule.split(" ", 1) for rule in (policy or "").split("; "))
        assert rules["default-src"] == "'none'"
        assert rules["connect-src"] == "'self'"
        assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "connect-src"}
        allowed = {source for rule in rules.values() for source in rule.split()}
        assert allowed == {"'none'", "'self'", "'unsafe-inline'", "data:", "blob:"}
        assert page.index("Content-Security-Policy") < page.index("<script")

    def test_the_scripts_request_the_version_only(self):
        requested = [re.findall(r"\bfetch\(([^,)]*)", path.read_text()) for path in sorted(WEB.glob("*.js"))]
        assert [name for names in requested for name in names] == ['"version"']
        for path in WEB.glob("*.js"):
            assert not re.search(r"XMLHttpRequest|WebSocket|EventSource|sendBeacon|import\(", path.read_text()), (
                path.name
            )

    def test_it_contains_every_script_and_style_and_the_needed_libraries_only(self, page, tmp_path):
        for path in [*WEB.glob("*.js"), *WEB.glob("*.css")]:
            assert path.read_text(encoding="utf-8") in page, path.name
        assert not re.search(r"<!--\w+-->", page), "a placeholder is left"
        charts, bodies = ((WEB / "vendor" / f"{name}.min.js").read_text() for name in ("charts", "bodies"))
        assert charts in page
        assert bodies not in page
        robots = write_report([write_run(tmp_path / "run", 2, 4, 4, episodes=1)]).read_text()
        assert charts in robots
        assert bodies in robots


class TestText:
    def test_names_of_a_run_are_not_parsed_as_tags(self, tmp_path):
        markup = "</title><img src=x onerror=alert(1)>"
        run = write(
            tmp_path / "<b>run", {"kind": markup, "environment": {"env": "<!--data-->"}, "note": "</script><script>"}
        )
        page = write_report([run]).read_text()
        parts = Parts(page)
        assert parts.of("img") == parts.of("b") == []
        assert len(parts.of("script")) == 3
        assert [text for tag, text in parts.texts if tag == "title" and text.strip()] == [f"{markup} on <!--data-->"]
        assert (page.count("<!--data-->"), "alert(1)>" in page) == (0, False)

    def test_the_title_names_kinds_and_environments(self, tmp_path):
        runs = [write(tmp_path / name, {"kind": name, "run": {"seed": 0}}) for name in ("sac", "td3", "ppo")]
        titles = [re.search("<title>(.*)</title>", compose(runs[:count])) for count in (1, 2, 3)]
        expected = ["sac on room", "sac on room and td3 on room", "sac on room and td3 on room and others"]
        assert [found and found[1] for found in titles] == expected


class TestCommands:
    """`rookery train` and `rookery report`, with short runs."""

    ARM = "--env arm --dimensions 2 --batch-size 8 --grid 2 2 --generations 3 --checkpoint-every 1 --quiet --devices 1"

    def test_a_page_is_written_after_every_checkpoint_and_at_the_end(self, tmp_path, monkeypatch):
        states, original = [], write_report

        def record(runs, *arguments, **options):
            page = original(runs, *arguments, **options)
            text = page.read_text()
            states.append((options.get("refresh", 0), re.findall(r'"state":\{"text":"([^"]*)"', text)))
            return page

        monkeypatch.setattr(rookery.running, "write_report", record)
        assert call("train", "map-elites", *self.ARM.split(), "--run-dir", str(tmp_path / "run"), "--live")[0] == 0
        on = [(10, [f"running, or killed, {done} of 3 generations"]) for done in (1, 2)]
        assert states == [*on, (10, ["finished, 3 of 3 generations"]), (0, ["finished, 3 of 3 generations"])]
        states.clear()
        assert call("resume", str(tmp_path / "run"), "--generations", "4", "--quiet")[0] == 0
        assert states == [(0, ["finished, 4 of 4 generations"])]

    def test_the_page_of_an_interrupted_run(self, tmp_path, monkeypatch):
        original = write_report

        def interrupt(runs, *arguments, **options):
            if options.get("refresh"):
                os.kill(os.getpid(), signal.SIGTERM)
            return original(runs, *arguments, **options)

        monkeypatch.setattr(rookery.running, "write_report", interrupt)
        code, _, _ = call("train", "map-elites", *self.ARM.split(), "--run-dir", str(tmp_path / "run"), "--live")
        assert code == 128 + signal.SIGTERM
        assert (
            '"state":{"text":"interrupted by SIGTERM, 2 of 3 generations"' in (tmp_path / "run/report.html").read_text()
        )

    @pytest.mark.filterwarnings("always::rookery.training.run_writer.AfterSaveWarning")
    def test_a_page_that_fails_does_not_end_the_run(self, tmp_path, monkeypatch):
        def fail(*_, **__):
            raise ValueError("no space left")

        monkeypatch.setattr(rookery.running, "write_report", fail)
        code, _, err = call("train", "map-elites", *self.ARM.split(), "--run-dir", str(tmp_path / "run"), "--live")
        warnings = err.splitlines()
        assert code == 1, "the run is complete without its page"
        assert len(warnings) == 2, "once during the run, and at the end"
        assert "failed with ValueError: no space left" in warnings[0]
        assert warnings[1] == "warning: no report.html was written (ValueError: no space left)"
        assert not (tmp_path / "run/report.html").exists()
        assert (tmp_path / "run/repertoire.png").exists()

    def test_without_episodes_the_page_is_written_with_a_note(self, tmp_path):
        run = write(tmp_path / "run")
        for words, code, message in (
            ("--rollouts x", 2, "--rollouts must be a whole number or all, got x"),
            (f"--page {run}", 1, "is a folder; name the page itself"),
        ):
            returned, _, err = call("report", str(run), *words.split())
            assert (returned, message in err) == (code, True)
        assert not (run / "report.html").exists()
        _, out, _ = call("report", str(run))
        assert re.search(r"^note +no episodes recorded: .*\nreport +.*report\.html$", out, re.M)
        (run / "report.html").unlink()
        assert call("report", str(run), "--rollouts", "0") == (0, f"report    {run / 'report.html'}\n", "")


def test_the_size_of_a_page_of_a_long_run(tmp_path):
    """A page of 1,000 generations of 64 members and 1,024 cells; elites are replaced less often over time."""
    few, more = (write_report([write_run(tmp_path / str(size), size, 64, 1024, episodes=0)]) for size in (10, 30))
    a_generation = (more.stat().st_size - few.stat().st_size) / 20
    library = (WEB / "vendor" / "bodies.min.js").stat().st_size
    episodes = BUDGET * 4 / 3 + library
    assert few.stat().st_size + 990 * a_generation + episodes < 15e6
    assert a_generation / 64 < 90, "bytes of a member in a generation"
