"""The kernels, collectives and library calls of a compiled program for a GPU, counted in its text."""

import collections
import re
from typing import NamedTuple


class Loop(NamedTuple):
    """A loop of a program."""

    body: str
    """Name of the computation that it repeats."""
    trips: int | None
    """Number of repetitions; None if the program does not state it."""
    kernels: int
    """Kernels of one repetition."""


class Count(NamedTuple):
    """The kernels of one call of a program."""

    kinds: collections.Counter[str]
    """Kind of operation -> kernels, with loops multiplied out."""
    loops: tuple[Loop, ...]
    """Every loop once, those with the most kernels first."""

    @property
    def total(self) -> int:
        """Kernels of a call. A loop of unknown length counts once, see `unknown`."""
        return sum(self.kinds.values())

    @property
    def unknown(self) -> tuple[Loop, ...]:
        """The loops whose number of repetitions is unknown."""
        return tuple(loop for loop in self.loops if loop.trips is None)


# Operations that launch nothing: they name or describe memory, or wait for an operation that was counted at its start.
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier"}
FREE |= {"partition-id", "replica-id", "get-dimension-size", "domain"}
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute", "collective-broadcast")

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{")
_OPERATION = re.compile(r"^(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([\w\-]+)\(")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


def count_kernels(text: str) -> Count:
    """Count the kernels of a compiled program from its text (optimised HLO).

    A fusion, a call of a library, a copy, a collective and any other operation that is not in `FREE` counts as one
    kernel. A loop counts as its body times its repetitions; a conditional as its longest branch and one more, the copy
    of its predicate to the host; a call as the computation that it calls.
    """
    computations, entry = _computations(text)
    loops: dict[str, Loop] = {}
    counted: dict[str, collections.Counter[str]] = {}

    def count(name: str) -> collections.Counter[str]:
        if name not in counted:
            counted[name] = sum((count_line(line) for line in computations.get(name, ())), collections.Counter())
        return counted[name]

    def count_line(line: str) -> collections.Counter[str]:
        found = _OPERATION.match(line)
        kind = found.group(1) if found else "?"
        if kind in FREE or kind.endswith("-done"):
            return collections.Counter()
        if kind == "while":
            body, trips = _called(line, "body")[0], _TRIPS.search(line)
            once = count(body)
            loops[body] = Loop(body, int(trips.group(1)) if trips else None, once.total())
            return _times(once, int(trips.group(1)) if trips else 1)
        if kind == "conditional":
            branches = _called(line, "branch_computations|true_computation|false_computation")
            return max(map(count, branches), key=collections.Counter.total) + collections.Counter({"conditional": 1})
        if kind in ("call", "async-start"):
            return sum(map(count, _called(line, "to_apply|calls")), collections.Counter())
        return collections.Counter({kind: 1})

    kinds = count(entry)
    return Count(kinds, tuple(sorted(loops.values(), key=lambda loop: -(loop.trips or 1) * loop.kernels)))


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """The instructions of each computation, and the name of the entry computation."""
    computations: dict[str, list[str]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = head.group(2)
            computations[current] = []
            entry = current if head.group(1) else entry
        elif line.startswith("}"):
            current = None
        elif current and " = " in line:
            computations[current].append(line.strip())
    return computations, entry


def _called(line: str, attributes: str) -> list[str]:
    """The names of the computations in some attributes of an instruction."""
    found = re.findall(rf"(?:{attributes})=(?:\{{([^}}]*)\}}|(%?[\w.\-]+))", line)
    return [name.strip().lstrip("%") for several, one in found for name in (several or one).split(",")]


def _times(counter: collections.Counter[str], factor: int) -> collections.Counter[str]:
    return collections.Counter({kind: number * factor for kind, number in counter.items()})


def collectives(count: Count) -> int:
    """Number of collective operations of a call."""
    return sum(number for kind, number in count.kinds.items() if kind.removesuffix("-start") in COLLECTIVES)


def custom_calls(text: str) -> list[str]:
    """The targets of a program's custom calls: libraries, and callbacks of the host."""
    return sorted(set(re.findall(r'custom_call_target="([^"]+)"', text)))
