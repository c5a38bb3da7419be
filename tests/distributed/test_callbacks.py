"""Callbacks of a run of two processes: only process 0 calls them, and both stop after the same generation."""

import pytest

from rookery.storage.checkpoint import Checkpointer
from rookery.storage.run_dir import RunFolder
from tests.distributed.test_distributed import finish, start_two

CODE = """
import sys, jax
import rookery
from rookery.distributed.signals import Interrupted
from rookery.training import CallbackError, Required
from tests import walks

here = dict(zip(sys.argv[1::2], sys.argv[2::2]))
where = here["--coordinator"], int(here["--num-processes"]), int(here["--process-id"])

def count(generation):
    print("called", generation.number)

def stop(generation):
    if generation.finished == 3:
        raise KeyboardInterrupt if here["--stop-by"] == "interrupt" else OSError("no quota")

with rookery.distributed.process_group(*where, lost_after=10.0):
    over = rookery.distributed.make_mesh()
    placement = rookery.distributed.placement(over)
    program = rookery.pbt(walks.learner(), walks.SPACE, 4, placement=placement)
    try:
        rookery.run(
            program, over=over, generations=6, run_dir=here["--run-dir"], quiet=True, checkpoint_every=100,
            callbacks=[count, Required(stop)],
        )
    except (CallbackError, Interrupted) as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("stop_by", ["interrupt", "exception"])
def test_both_processes_stop_after_the_same_generation(tmp_path, stop_by):
    run = tmp_path / "run"
    results = finish(*start_two("--run-dir", str(run), "--stop-by", stop_by, code=CODE))
    assert [code for code, _, _ in results] == [0, 0], results
    (_, first, _), (_, second, _) = results
    assert [line for line in first.splitlines() if "called" in line] == [f"called {number}" for number in range(3)]
    assert "called" not in second
    for out, what in ((first, "the callback stop failed with OSError: no quota"), (second, "in process 0")):
        if stop_by == "interrupt":
            assert f"Interrupted stopped after generation 3, which is saved; continue with: rookery resume {run}" in out
        else:
            assert f"{what}, and ended the run after generation 3, which is saved in {run}" in out
    assert Checkpointer(RunFolder(run).checkpoints, read_only=True).latest() == 3
