"""Selection and retention of the best checkpoint."""

from pathlib import Path

import numpy as np
import pytest

from rookery.storage import manifest
from rookery.storage.best_checkpoint import Best, find
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import RunLog, TableWarning
from rookery.storage.run_dir import RunFolder, create


def test_only_a_finite_and_greater_value_of_a_known_column_improves():
    best = Best("return/prey")
    values = (1.0, 1.0, np.nan, 3.0)
    improved = [best.improves(generation, {"return/prey": value}) for generation, value in enumerate(values)]
    assert improved == [True, False, False, True]
    assert best.generation == 3
    assert not Best(None).improves(1, {})
    with pytest.raises(ValueError, match="'return/pray'; did you mean return/prey"):
        Best("return/pray").check(["return/prey", "fitness"])
    Best(None).check([])


def stopped(path: Path, records: bool) -> RunFolder:
    """Five generations with two checkpoints kept, of which the second was the best; `records`: with their scores."""
    with create(path, {}) as folder, RunLog(folder) as log:
        with Checkpointer(folder.checkpoints, keep=2) as checkpoints:
            best = Best("score")
            for generation, score in enumerate((1.0, 5.0, 2.0, 3.0, 4.0)):
                log.write(generation, {"score": score}, {})
                best.improves(generation + 1, {"score": score})
                metadata = best.score({"score": score}) if records else {}
                checkpoints.save(generation + 1, {"value": np.float32(score)}, metadata, best.generation)
        return folder


@pytest.fixture
def run(tmp_path):
    return stopped(tmp_path / "run", records=False)


def test_the_best_checkpoint_is_kept_beside_the_newest_and_found(run):
    checkpoints = Checkpointer(run.checkpoints, read_only=True)
    assert checkpoints.complete_generations() == [2, 4, 5]
    state, _, generation = checkpoints.restore({"value": np.float32(0)}, find(run, checkpoints, "best", "score"))
    assert (float(state["value"]), generation) == (5.0, 2)
    assert find(run, checkpoints, "last", None) is None
    assert find(run, checkpoints, "4", None) == 4
    with pytest.raises(ValueError, match=r"^checkpoint needs best_by, without which .* was trained, got 'best'"):
        find(run, checkpoints, "best", None)
    with pytest.raises(ValueError, match="must be best, last or the number of a generation, got '-1'"):
        find(run, checkpoints, "-1", None)
    for content in ("", "generation,other\n0,1.0\n"):
        run.metrics_file.write_text(content)
        with pytest.raises(ValueError, match="no complete checkpoint with a finite score"):
            find(run, checkpoints, "best", "score")


def recalled(run: RunFolder) -> Best:
    best = Best("score")
    best.recall(run, Checkpointer(run.checkpoints, read_only=True))
    return best


def test_recall_reads_only_the_files_of_the_best_complete_checkpoint(run, monkeypatch):
    read = []
    verified = manifest.verified
    with monkeypatch.context() as patched:
        patched.setattr(manifest, "verified", lambda folder, number: read.append(number) or verified(folder, number))
        best = recalled(run)
    assert (best.generation, read) == (2, [2])
    assert not best.improves(6, {"score": 5.0})
    (run.checkpoints / "generation_00000002.json").write_text("{}")
    assert recalled(run).generation == 5
    manifest.retire(run.checkpoints, 5, keep=1)
    assert recalled(run).generation == 5


@pytest.mark.parametrize("lost", ["1,5.0\n", "generation,score\n0,1.0\n1,5.0\n2,2.0\n3,3.0\n4,4.0\n"])
def test_a_score_whose_row_is_lost_is_that_of_the_checkpoint(tmp_path, lost):
    run = stopped(tmp_path / "run", records=True)
    table = run.metrics_file.read_text()
    assert lost in table
    run.metrics_file.write_text(table.replace(lost, ""))
    assert recalled(run).generation == 2
    with pytest.warns(TableWarning, match="has lost the rows of"), RunLog(run, 5):  # which fills them in
        pass
    best = recalled(run)
    assert (best.generation, best.improves(6, {"score": 4.0})) == (2, False)
    assert Best(None).score({"score": 1.0}) == best.score({"score": np.nan}) == {}
