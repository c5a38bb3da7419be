"""A run that is killed or stopped by a signal continues bit-equal.

Real processes and signals for three kinds, one of each shape of state that a file holds: members, a repertoire, a team.
For others the folder of a whole run is cut to what a kill leaves (`cut`), which needs no second process.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from orbax.checkpoint import RestoreArgs

from rookery.storage import manifest
from rookery.storage.checkpoint import _read_with
from rookery.storage.csv_log import read_csv, read_table
from rookery.storage.events import read_journal
from rookery.storage.leaf_specs import LeafSpec
from rookery.storage.run_dir import RunFolder
from tests.commandline import POINT, call

COMMAND = "import rookery.cli.app; rookery.cli.app.main()"
FLAGS = [*POINT, *"--generations 16 --checkpoint-every 1 --keep 2".split()]
ARMS = "--env arm --grid 4 4 --batch-size 16 --checkpoint-every 1 --keep 2".split()
ME_PBT = (
    "--env point_trap --episode-length 20 --population 4 --ga-population 4 --grid 4 4 "
    "--best-fraction .25 --replace-fraction .25 --sample-fraction .25 --generations 12 --steps-per-generation 400 "
    "--num-envs 4 --batch-size 8 --hidden-sizes 8 --buffer-size 5000 --warmup-steps 8 --eval-episodes 2 "
    "--checkpoint-every 1 --keep 2"
).split()
TEAMS = (
    "--env pursuit_discrete --episode-length 10 --population 2 --member agent --recurrent --memory-size 4 "
    "--option capture_radius=0.3 --normalize-observations --replace-count 1 --best-count 1 --best-by return/prey "
    "--opponents league --league-size 2 --league-share .5 --league-every 2 "
    "--generations 12 --evaluate-every 2 --num-envs 4 --rollout-length 8 --minibatches 2 --hidden-sizes 8 "
    "--eval-episodes 2 --checkpoint-every 1 --keep 2"
).split()
IN_PROCESS = {
    "pbt-diayn": (
        "--env point_goal --episode-length 10 --population 2 --num-skills 3 --balanced --smerl "
        "--normalize-observations --space.env.x-weight evolve --objective approach --replace-count 1 --best-count 1 "
        "--exploit-interval auto --round-patience 1 --rounds-until 12 "
        "--steps-per-generation 400 --num-envs 4 --updates-per-step 0.25 --batch-size 8 --hidden-sizes 8 "
        "--discriminator-hidden-sizes 8 --buffer-size 5000 --warmup-steps 8 --eval-episodes 3"
    ),
    "pbt-pqn": (
        "--episode-length 20 --population 2 --anneal-updates 6 --replace-count 1 --best-count 1 --evaluate-every 2 "
        "--num-envs 4 --rollout-length 8 --minibatches 2 --epochs 1 --hidden-sizes 8 --eval-episodes 2"
    ),
    "cma-mae": "--env sphere --dimensions 4 --emitters 2 --batch-size 8 --grid 4 4",
}
EVERY = "--generations 4 --checkpoint-every 1 --keep 9".split()
TIMING = {"seconds", "steps_per_second", "seconds_tables", "seconds_checkpoint", "seconds_evaluation"}


def environment() -> dict[str, str]:
    """Two devices, like this process; the compiled programs are shared through the test session's cache."""
    flags = " ".join(flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag)
    cache = os.environ["ROOKERY_TEST_CACHE"]
    variables = {"JAX_COMPILATION_CACHE_DIR": cache, "XLA_FLAGS": flags, "JAX_NUM_CPU_DEVICES": "2"}
    return os.environ | variables | {"PYTHONUNBUFFERED": "1"}


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def generations(run: Path) -> int:
    return len(read_table(run / "metrics.csv").get("generation", ()))


def run_events(run: Path) -> list[str]:
    """The events in a run's journal, with the reason of each end."""
    return [": ".join(filter(None, (event["event"], event.get("why")))) for event in read_journal(RunFolder(run))]


def await_generation(process: subprocess.Popen, run: Path, count: int) -> None:
    while generations(run) < count and process.poll() is None:
        time.sleep(0.005)


def await_saving(process: subprocess.Popen, run: Path) -> None:
    """Wait until a checkpoint is partly written."""
    while not list((run / "checkpoints").glob("*tmp*")) and process.poll() is None:
        time.sleep(0.0005)


def assert_same_run(left: Path, right: Path) -> None:
    """Tables and final states are equal bit by bit; only wall times may differ."""
    tables = [name for name in ("lineage.csv", "repertoire.csv", "cells.csv") if (left / name).exists()]
    for name in ["metrics.csv", *tables]:
        one, other = read_csv(left / name), read_csv(right / name)
        assert one.keys() == other.keys()
        for column in one.keys() - TIMING:
            assert np.array_equal(one[column], other[column], equal_nan=True), f"{name}: {column}"
    (specs, state), (other_specs, other_state) = newest_state(left), newest_state(right)
    assert specs == other_specs
    assert len(state) > 0
    assert state.keys() == other_state.keys()
    for name, one in state.items():
        other = other_state[name]
        assert one.dtype == other.dtype
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), specs[int(name)]


def newest_state(run: Path) -> tuple[list[LeafSpec], dict[str, np.ndarray]]:
    """The specs of a run's newest checkpoint, and its arrays by their numbers, read without a trace of the program."""
    folder = run / "checkpoints"
    body = manifest.verified(folder, manifest.generations(folder)[0])
    stored = [number for number, spec in enumerate(body["leaves"]) if "value" not in spec and 0 not in spec["shape"]]
    arguments = {str(number): RestoreArgs(restore_type=np.ndarray) for number in stored}
    arrays = _read_with(folder / body["folder"], dict.fromkeys(arguments, 0), arguments)
    return body["leaves"], {name: np.asarray(array) for name, array in arrays.items()}


def train(folder: Path, kind: str, *flags: str) -> Path:
    """A run that nothing interrupts."""
    run = folder / "uninterrupted"
    code, _, err = call("train", kind, *flags, "--run-dir", str(run))
    assert code == 0, err
    return run


def test_a_run_that_is_killed_repeatedly_also_while_saving(tmp_path):
    uninterrupted, run = train(tmp_path, "pbt-sac", *FLAGS), tmp_path / "run"
    lineage = read_csv(uninterrupted / "lineage.csv")
    assert (lineage["parent"] != lineage["member"]).any(), "the test needs replaced members"
    process = start("train", "pbt-sac", *FLAGS, "--run-dir", str(run))
    await_saving(process, run)
    kill(process)
    reached, process = generations(run), start("resume", str(run))
    await_generation(process, run, reached + 2)
    time.sleep(np.random.default_rng().uniform(0, 0.1))
    kill(process)
    code, _, err = call("resume", str(run))
    assert code == 0, err
    assert_same_run(uninterrupted, run)


@pytest.mark.parametrize(("kind", "flags"), [("me-pbt-sac", ME_PBT), ("pbt-ippo", TEAMS)])
def test_me_pbt_and_team_runs_continue_after_a_kill(kind, flags, tmp_path):
    uninterrupted, run = train(tmp_path, kind, *flags), tmp_path / "run"
    lineage = read_csv(uninterrupted / "lineage.csv")
    if kind == "me-pbt-sac":
        assert (lineage["parent"] == -1).any(), "the test needs members from the repertoire"
        cells = read_csv(uninterrupted / "cells.csv")
        assert len(set(cells["generation"].tolist())) > 2, "the test needs several tables of cells"
    else:
        assert (lineage["parent"] != lineage["member"]).any(), "the test needs replaced members"
        entered = read_csv(uninterrupted / "metrics.csv")["league_entered/1"]
        assert len(np.unique(entered[np.isfinite(entered)])) > 1, (
            "the test needs a league in which entries are replaced"
        )
    process = start("train", kind, *flags, "--run-dir", str(run))
    await_generation(process, run, 2)
    await_saving(process, run)
    kill(process)
    code, _, err = call("resume", str(run))
    assert code == 0, err
    assert_same_run(uninterrupted, run)
    assert run_events(uninterrupted) == ["began", "compiled", "ended: finished"]
    assert run_events(run) == ["began", "compiled", "began", "compiled", "ended: finished"], "a kill leaves no end"
    kept = [sorted(path.name for path in (one / "checkpoints").glob("*.json")) for one in (uninterrupted, run)]
    assert kept[0] == kept[1], "the best checkpoint is the same one"


def cut(uninterrupted: Path, run: Path, generation: int) -> None:
    """Copy a run as a kill leaves it: the next checkpoint is partly written, and the tables have later rows."""
    shutil.copytree(uninterrupted, run)
    saved = sorted((run / "checkpoints").glob("*.json"))
    saved[generation].with_suffix(".orbax-checkpoint-tmp").mkdir()
    for path in saved[generation:]:
        path.unlink()
        shutil.rmtree(path.with_suffix(""))
    journal = run / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"ended"' not in line))


@pytest.mark.parametrize(("kind", "flags"), IN_PROCESS.items())
def test_other_kinds_continue_from_what_a_kill_leaves(kind, flags, tmp_path):
    uninterrupted, run = train(tmp_path, kind, *flags.split(), *EVERY), tmp_path / "run"
    if kind == "pbt-diayn":
        metrics = read_csv(uninterrupted / "metrics.csv")
        assert metrics["diverse"].any(), "the test needs SMERL's rewards"
        assert 0 < metrics["round"][-1] == read_csv(uninterrupted / "lineage.csv")["round"][-1], "no round has ended"
    elif kind == "pbt-pqn":
        found = read_csv(uninterrupted / "metrics.csv")["exploration"]
        assert found[-1] < found[0], "the test needs a schedule"
    else:
        assert len(read_csv(uninterrupted / "repertoire.csv")["fitness"]), "the test needs elites"
    cut(uninterrupted, run, 2)
    code, out, err = call("resume", str(run))
    assert code == 0, err
    assert "continues after generation 2; generations 3 to 4 of the tables will be trained again\n" in out
    assert_same_run(uninterrupted, run)
    assert run_events(run) == ["began", "compiled", "began", "compiled", "ended: finished"]


def test_a_stopped_run_is_saved_and_its_message_names_the_command_to_continue(tmp_path):
    run = tmp_path / "run"
    process = start("train", "map-elites", *ARMS, "--generations", "100000", "--run-dir", str(run))
    await_generation(process, run, 3)
    process.send_signal(signal.SIGSTOP)  # so that it is alive when another process is rejected
    code, _, err = call("resume", str(run))
    assert code == 1
    assert f"process {process.pid}" in err
    process.send_signal(signal.SIGCONT)
    stopped = assert_stopped(process, run, signal.SIGINT, 130)
    process = start("resume", str(run))
    await_generation(process, run, stopped + 2)
    again = assert_stopped(process, run, signal.SIGTERM, 143)
    assert again > stopped
    code, _, err = call("resume", str(run), "--generations", str(again + 2))
    assert code == 0, err
    ends = "interrupted by SIGINT", "interrupted by SIGTERM", "finished"
    assert run_events(run) == [event for end in ends for event in ("began", "compiled", f"ended: {end}")]
    assert_same_run(train(tmp_path, "map-elites", *ARMS, "--generations", str(again + 2)), run)


def assert_stopped(process: subprocess.Popen, run: Path, signum: signal.Signals, code: int) -> int:
    """Stop a run by a signal, and return the generation that it saved."""
    process.send_signal(signum)
    returned, _, err = finish(process)
    assert returned == code
    assert f"rookery resume {run}" in err
    return generations(run)


def test_a_finished_run_continues_with_more_generations_also_if_its_checkpoint_is_damaged(tmp_path):
    uninterrupted, run = train(tmp_path, "map-elites", *ARMS, "--generations", "6"), tmp_path / "run"
    assert call("train", "map-elites", *ARMS, "--generations", "4", "--run-dir", str(run))[0] == 0
    code, out, _ = call("resume", str(run))
    assert code == 0
    assert "already reached" in out
    before = {path: path.read_bytes() for path in (run / "config.json", run / "metrics.csv")}
    assert "already reached" in call("resume", str(run), "--generations", "2")[1]
    assert before == {path: path.read_bytes() for path in before}

    newest = max((run / "checkpoints").glob("generation_*4*.json"))
    data = max((run / "checkpoints" / newest.stem).rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    code, _, err = call("resume", str(run), "--generations", "6")
    assert code == 0
    assert "generation 4 is damaged" in err
    assert run_events(run)[3:] == ["began", "warned", "compiled", "ended: finished"]
    assert_same_run(uninterrupted, run)
    assert json.loads((run / "config.json").read_text())["config"]["run"]["generations"] == 6
