"""Islands that do not come back: what the user reads, the exit status, the journal, and what the others keep."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rookery.islands import IslandError, Outcome, plan, run_islands
from rookery.islands.failures import record
from rookery.report.readers import open_run
from rookery.report.sections.summary import state
from rookery.storage.csv_log import read_csv
from rookery.storage.events import read_journal
from rookery.storage.island_files import island_dir, islands_of
from rookery.storage.run_dir import RunFolder, RunFolderError, open_existing
from tests.commandline import call
from tests.islands.runs import PBT, contents, train


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Two islands after two generations."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train(PBT, folder, "--generations", "2") == (0, "", "")
    return folder


def damage(folder: Path, number: int) -> None:
    """Leave the island no complete checkpoint."""
    for manifest in (island_dir(folder, number) / "checkpoints").glob("generation_*.json"):
        manifest.write_text("{}")


def lengths(folder: Path) -> list[int]:
    return [len(read_csv(path / "metrics.csv")["generation"]) for path in islands_of(folder)]


def test_a_damaged_island_fails_alone_and_is_reported(whole, copy):
    """The other one is trained to the end; the remedy brings back the island bit for bit."""
    damage(copy, 1)
    code, out, err = call("resume", str(copy), "--generations", "4", "--quiet")
    assert (code, out) == (1, "")
    (line,) = [line for line in err.splitlines() if not line.startswith("warning: ")]
    checkpoints = copy / "islands/1/checkpoints"
    assert line == (
        f"error: island 1 failed: no checkpoint in {checkpoints} is complete; put a copy of this folder back, or "
        "delete it, so that the island repeats its generations and its recorded imports, and continue with: "
        f"rookery resume {copy}"
    )
    assert lengths(copy) == [4, 2]
    event = read_journal(RunFolder(copy / "islands/1"))[-1]
    assert (event["event"], event["generation"]) == ("failed", 2)
    assert event["message"].startswith("no checkpoint in 1/checkpoints is complete; ")
    assert str(copy) not in json.dumps(event)
    assert read_journal(RunFolder(copy / "islands/0"))[-1]["event"] == "ended"
    page = (copy / "report.html").read_text()
    assert "failed after generation 2" in page
    assert "ended, 2 to 4 of 4 generations" in page

    metrics, islands = open_run(copy).metrics, [read_csv(path / "metrics.csv") for path in islands_of(copy)]
    assert metrics["generation"].tolist() == [0, 1, 2, 3]
    assert metrics["env_steps"].tolist() == [80, 160, 200, 240]
    best = [*islands[1]["best_fitness"], *[islands[1]["best_fitness"][-1]] * 2]
    assert metrics["best_fitness"].tolist() == np.maximum(islands[0]["best_fitness"], best).tolist()
    assert metrics["seconds"][2:].tolist() == islands[0]["seconds"][2:].tolist()

    shutil.rmtree(checkpoints)
    assert call("resume", str(copy), "--generations", "2", "--quiet") == (0, "", "")
    assert contents(copy)[1] == contents(whole)[1]


def test_an_error_of_every_island_has_a_line_each(copy):
    damage(copy, 0)
    damage(copy, 1)
    code, _, err = call("resume", str(copy), "--generations", "3")
    assert code == 1
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert [line[: len("error: island 0 failed: ")] for line in lines] == [f"error: island {i} failed: " for i in "01"]
    (copy / "islands/1/config.json").write_text("{")  # which is never overwritten with the run
    with pytest.raises(RunFolderError, match=r"islands/1/config\.json is damaged \(.*\); restore a copy\.$"):
        open_existing(copy / "islands/1")


@pytest.mark.filterwarnings("ignore::rookery.storage.checkpoint.CheckpointWarning")
def test_from_python_the_error_has_the_outcomes(copy):
    damage(copy, 0)
    config = plan.resumed(open_existing(copy), None, {"quiet": True, "generations": 3})
    with pytest.raises(IslandError, match=r"^island 0 failed: no checkpoint in .* is complete; ") as caught:
        run_islands(config, resume=True)
    assert [outcome.island for outcome in caught.value.outcomes] == [0, 1]
    assert caught.value.outcomes[1] == Outcome(1)
    assert lengths(copy) == [2, 3]


def test_a_failure_is_in_the_journal_if_that_can_be_written(tmp_path):
    island = RunFolder(island_dir(tmp_path, 1))
    island.path.mkdir(parents=True)
    record([Outcome(0, "without a folder"), Outcome(1, "lost its node"), Outcome(2)], tmp_path)
    (event,) = read_journal(island)
    assert (event["event"], event["generation"], event["message"]) == ("failed", 0, "lost its node")
    island.journal_file.unlink()
    island.journal_file.mkdir()
    record([Outcome(1, "lost its node")], tmp_path)
    assert state({"run": {"generations": 9}}, [event], {"generation": np.array([2.0])}) == {
        "text": "failed, 3 of 9 generations",
        "over": True,
    }
