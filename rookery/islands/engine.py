"""Runs the islands of a run: the interface of both engines, and the one that lets them take turns in one process."""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from rookery.distributed.signals import Interrupted, Requests
from rookery.experiments.spec import RunSpec
from rookery.islands.failures import ENDS_ONE, Outcome, failed
from rookery.islands.plan import Builder, CallbacksFn
from rookery.training.loop import Result


def take_turns(
    spec: RunSpec,
    builder: Builder,
    requests: Requests,
    command: Sequence[str] | None,
    callbacks: CallbacksFn,
    show: Callable[[], None],
) -> list[Outcome]:
    """Run all islands of a run, whose folder exists and is locked, in this process; the one with the fewest finished
    generations has the next turn.

    The others continue after an error that ends one island (`failures.ENDS_ONE`). Any other exception ends all of them.
    The `builder` is that of all islands, or of the first where the environments run on the host; `show` is called after
    each generation.
    """
    numbers, run_dir = range(spec.method.islands.islands), Path(str(spec.run.run_dir))
    builders = {number: builder.another() if number and builder.on_host else builder for number in numbers}
    running = {number: builders[number].turns(number, requests, command, callbacks) for number in numbers}
    reached: dict[int, int] = dict.fromkeys(numbers, -1)  # the first turn of each one ends before a generation
    outcomes = []
    try:
        while running:
            number = min(running, key=lambda island: (reached[island], island))
            outcome = _turn(number, running[number], reached, run_dir)
            if outcome is not None:
                outcomes.append(outcome)
                del running[number]
            show()
    finally:
        for turns in reversed(running.values()):
            turns.close()
    return sorted(outcomes)


def _turn(number: int, running: Generator[int, None, Result], reached: dict[int, int], run_dir: Path) -> Outcome | None:
    """Run one generation of an island; returns how it ended, or None."""
    try:
        reached[number] = next(running)
    except StopIteration:
        return Outcome(number)
    except Interrupted:
        return Outcome(number, stopped=True)
    except ENDS_ONE as error:
        return failed(number, error, run_dir)
    return None
