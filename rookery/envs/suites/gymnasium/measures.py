"""Measures of environments on the host: numbers of a step's info or of a user's function, summed over an episode."""

import reprlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from rookery.envs.suites.gymnasium.spaces import checked_number
from rookery.settings import MEASURE_NAMES, check_names, suggestion

MeasureFn = Callable[[Mapping[str, Any], Any], Any]  # the info and the observation of a step -> a number
Source = MeasureFn | str  # what a measure is read by: a function, or a key of the info
By = Literal["last", "sum", "max"]
"""What an episode's measure is: the number of its last step, the sum over its steps, or the largest."""


class Measure(NamedTuple):
    """A measure of an environment on the host."""

    name: str
    read: MeasureFn
    by: By
    meaning: str
    is_key: bool  # whether it is a key of the info, and no function of the user


def measures_of(given: Mapping[str, Source | tuple[Source, By]] | None) -> tuple[Measure, ...]:
    """The measures that a user declares: name -> its source, with the word of `By` if it is not "last".

    Raises:
      ValueError: a word that is none of `By`, or a name that no column can have.
    """
    check_names("measure", given or (), MEASURE_NAMES)
    found = []
    for name, value in (given or {}).items():
        source, by = value if isinstance(value, tuple) else (value, "last")
        if by not in _WHEN:
            raise ValueError(f"the measure {name} is taken by {by!r}; give one of {', '.join(_WHEN)}.")
        is_key = isinstance(source, str)
        what = f"info[{source!r}]" if is_key else "a function of the info and the observation"
        read = partial(_entry, source) if isinstance(source, str) else source
        found.append(Measure(name, read, by, f"{what}, {_WHEN[by]}", is_key))
    return tuple(found)


_WHEN = {"last": "at the end of an episode", "sum": "summed over an episode", "max": "the largest of an episode"}


def keys_of(measure: str, measure_by: By) -> tuple[Measure, ...]:
    """The measures of the options `measure`, keys of the info separated by commas, and `measure_by`."""
    keys = [key.strip() for key in measure.split(",") if key.strip()]
    return measures_of({key: (key, measure_by) for key in keys})


def _entry(key: str, info: Mapping[str, Any], observation: object) -> Any:
    del observation
    if not isinstance(info, Mapping):
        raise ValueError(f"its info is {reprlib.repr(info)} instead of a dictionary")
    if key not in info:
        remedy = suggestion(key, map(str, info)).rstrip(".") if info else "it is empty"
        raise MeasureError(f"its info has no {key!r} for the measure ({remedy})")
    value = info[key]
    # `RecordEpisodeStatistics` reports the return, the length and the time of an episode.
    return value["r"] if key == "episode" and isinstance(value, Mapping) and "r" in value else value


class MeasureError(ValueError):
    """The info of a step lacks the key of a measure."""


class Sums:
    """What the steps of one episode add to the sums of its measures."""

    def __init__(self, measures: tuple[Measure, ...]):
        self._measures, self._highest = measures, [-np.inf] * len(measures)

    def step(self, info: Mapping[str, Any], observation: object, over: bool, cut: bool = False) -> list[float]:
        """What a step adds; that is the whole measure at the end of an episode unless it is a sum.

        `over` says that the step is the last of the episode, `cut` that a limit ends the episode which the environment
        does not know, so that the info of its end is missing: a measure by a key that it then lacks is unknown, NaN.

        Raises:
          ValueError: a measure is not one number, or the info lacks it.
        """
        return [self._added(place, info, observation, over, cut) for place in range(len(self._measures))]

    def _added(self, place: int, info: Mapping[str, Any], observation: object, over: bool, cut: bool) -> float:
        name, read, by, *_ = self._measures[place]
        if by == "last" and not over:
            return 0.0
        try:
            value = float(checked_number(f"its measure {name}", read(info, observation)))
        except MeasureError:
            if not cut:
                raise
            value = np.nan
        if by != "max":
            return value
        self._highest[place] = float(np.maximum(self._highest[place], value))  # NaN if one is
        return self._highest[place] if over else 0.0
