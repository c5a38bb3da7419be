"""Which random keys a function draws from, and which it derives: an abstract interpretation of its jaxpr.

With JAX's partitionable threefry `split(key, n)[i]` equals `fold_in(key, i)`, so a key is known by its path: the
numbers by which it was derived from the function's argument. A value is an array of integers that is known, an array of
keys, or unknown; only integer arithmetic is executed. A loop whose condition is unknown runs twice, and every branch of
an unknown condition runs, each by itself.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

LARGEST = 4096  # elements of an integer array that is worth knowing
ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
ARITHMETIC |= {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal}
ARITHMETIC |= {"ne": np.not_equal, "and": np.bitwise_and, "or": np.bitwise_or, "convert_element_type": np.asarray}
# All that keys may go through.
MOVES = {"broadcast_in_dim", "reshape", "squeeze", "slice", "transpose", "rev", "copy", "dynamic_slice", "gather"}
MOVES |= {"dynamic_update_slice", "concatenate", "select_n", "split", "unstack", "expand_dims"}


class Unknown:
    """A value of which only its identity is known."""


class Keys:
    """An array of keys, each by its path."""

    def __init__(self, paths: Sequence[tuple], shape: Sequence[int]) -> None:
        """Paths in the order of the array."""
        self.paths, self.shape = list(paths), tuple(shape)


class Ledger:
    """What each key was used for: use -> path -> where."""

    def __init__(self, before: "Ledger | None" = None) -> None:
        """What happens after `before`."""
        self.before = before
        self.place = before.place if before else ""  # the last line of this repository that was seen
        self.uses: dict[str, dict[tuple, str]] = {"drawn from": {}, "derived": {}, "split": {}}
        self.conflicts: list[str] = before.conflicts if before else []

    def draw(self, paths: Sequence[tuple]) -> None:
        """Numbers are drawn from keys: nothing else may use them."""
        for path in paths:
            self._note("drawn from", path, ("drawn from", "split"))

    def derive(self, paths: Sequence[tuple]) -> None:
        """Keys are made of others: each is made once, and of one that is not drawn from."""
        for path in paths:
            self._note("derived", path, ("derived",))
            self._note("split", path[:-1], ("drawn from",))

    def _note(self, use: str, path: tuple, excluded: Sequence[str]) -> None:
        for other in excluded:
            earlier = self._find(other, path)
            if earlier:
                self.conflicts.append(f"key {path} is {other} in {earlier} and {use} in {self.place}")
        self.uses[use][path] = self.place

    def _find(self, use: str, path: tuple) -> str | None:
        return self.uses[use].get(path) or (self.before._find(use, path) if self.before else None)

    def merge(self, branches: "Sequence[Ledger]") -> None:
        """Add what happened in branches of which one is taken."""
        for branch in branches:
            for use, paths in branch.uses.items():
                self.uses[use] |= paths


def reused(function: Callable[[Any], Any]) -> list[str]:
    """The keys that are consumed twice in a function of one key, a sentence each."""
    closed, ledger = jax.make_jaxpr(function)(jax.random.key(0)), Ledger()
    _run(closed, [Keys([()], ())], ledger)
    return list(dict.fromkeys(ledger.conflicts))


def _run(closed: ClosedJaxpr | Jaxpr, arguments: Sequence[Any], ledger: Ledger) -> list[Any]:
    jaxpr, consts = (closed.jaxpr, closed.consts) if isinstance(closed, ClosedJaxpr) else (closed, ())
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, map(_known, consts), strict=True))
    values |= dict(zip(jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        return _known(variable.val) if isinstance(variable, Literal) else values[variable]

    for equation in jaxpr.eqns:
        ledger.place = _place(equation) or ledger.place
        outputs = _execute(equation, [read(variable) for variable in equation.invars], ledger)
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _known(value: Any) -> Any:
    if jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key):
        rows = np.asarray(jax.random.key_data(value)).reshape(-1, 2)
        return Keys([("constant", *row) for row in rows.tolist()], value.shape)
    array = np.asarray(value)
    return array if _is_worth_knowing(array) else Unknown()


def _execute(equation: Any, given: list[Any], ledger: Ledger) -> list[Any]:
    name = equation.primitive.name
    keys = any(isinstance(value, Keys) for value in given)
    known = all(isinstance(value, np.ndarray) for value in given)
    inner = next(filter(None, map(equation.params.get, ("jaxpr", "call_jaxpr", "call"))), None)
    if name in RANDOM:
        outputs = RANDOM[name](equation, given, ledger)
    elif name in LOOPS:
        outputs = LOOPS[name](equation, given, ledger) if keys or known or _is_random(equation) else None
    elif inner is not None:
        worthwhile = keys or _is_random(equation) or not all(isinstance(value, Unknown) for value in given)
        outputs = _run(inner, given, ledger) if worthwhile else None
    elif keys and name not in MOVES:
        raise NotImplementedError(f"{name} of keys, in {ledger.place}.")
    elif keys:
        outputs = _moved(equation, given)
    elif known and all(_is_worth_knowing(variable.aval) for variable in equation.outvars):
        outputs = _arithmetic(equation, given)
    else:
        outputs = given if name == "convert_element_type" and isinstance(given[0], Unknown) else None
    return [Unknown() for _ in equation.outvars] if outputs is None else outputs


def _is_worth_knowing(array: Any) -> bool:
    return array.dtype.kind in "iub" and array.size <= LARGEST


def _arithmetic(equation: Any, given: list[Any]) -> list[np.ndarray]:
    """An operation on numbers, without compiling it where that is easy."""
    name, params, output = equation.primitive.name, equation.params, equation.outvars[0].aval
    if name in ARITHMETIC:
        return [np.asarray(ARITHMETIC[name](*given), output.dtype)]
    if name in ("reshape", "squeeze", "expand_dims"):
        return [given[0].reshape(output.shape)]
    if name == "slice":
        strides = params["strides"] or [None] * len(output.shape)
        return [given[0][tuple(map(slice, params["start_indices"], params["limit_indices"], strides))]]
    if name == "broadcast_in_dim":
        others = [axis for axis in range(len(output.shape)) if axis not in params["broadcast_dimensions"]]
        return [np.broadcast_to(np.expand_dims(given[0], others), output.shape)]
    with jax.ensure_compile_time_eval():
        outputs = equation.primitive.bind(*map(jnp.asarray, given), **params)
    return list(map(np.asarray, outputs if equation.primitive.multiple_results else [outputs]))


def _place(equation: Any) -> str:
    """The innermost line of this repository that an operation comes from."""
    traceback = equation.source_info.traceback
    for frame in traceback.frames if traceback else ():
        folder, _, file = frame.file_name.rpartition("/")
        if "site-packages" not in folder and ("/rookery" in folder or folder.endswith("/tests")):
            return f"{folder.rpartition('/')[2]}/{file}:{frame.line_num}"
    return ""


def _is_random(equation: Any) -> bool:
    """Whether anything within an equation uses keys, those closed over among them."""
    return any(
        _uses_keys(inner)
        for inner in jax.tree.leaves(tuple(equation.params.values()), is_leaf=_is_jaxpr)
        if _is_jaxpr(inner)
    )


def _is_jaxpr(value: Any) -> bool:
    return isinstance(value, (ClosedJaxpr, Jaxpr))


@cache
def _uses_keys(inner: ClosedJaxpr | Jaxpr) -> bool:
    jaxpr = inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner
    return any(equation.primitive.name.startswith("random_") or _is_random(equation) for equation in jaxpr.eqns)


def _seed(equation: Any, given: list[Any], ledger: Ledger) -> list[Any]:
    del ledger
    shape = equation.outvars[0].aval.shape
    seeds = given[0].flat if isinstance(given[0], np.ndarray) else [(given[0], i) for i in range(int(np.prod(shape)))]
    return [Keys([("seed", seed) for seed in seeds], shape)]


def _draw(equation: Any, given: list[Any], ledger: Ledger) -> list[Any]:
    del equation
    ledger.draw(given[0].paths)
    return [Unknown()]


def _split(equation: Any, given: list[Any], ledger: Ledger) -> list[Any]:
    numbers = range(int(np.prod(equation.params["shape"])))
    return _derived(equation, [(*path, number) for path in given[0].paths for number in numbers], ledger)


def _fold_in(equation: Any, given: list[Any], ledger: Ledger) -> list[Any]:
    keys, number = given
    if isinstance(number, Unknown):
        return _derived(equation, [(*path, (number, place)) for place, path in enumerate(keys.paths)], ledger)
    places, numbers = np.broadcast_arrays(np.arange(len(keys.paths)).reshape(keys.shape), number)
    pairs = zip(places.flat, numbers.flat, strict=True)
    return _derived(equation, [(*keys.paths[place], int(one)) for place, one in pairs], ledger)


def _derived(equation: Any, paths: list[tuple], ledger: Ledger) -> list[Any]:
    ledger.derive(paths)
    return [Keys(paths, equation.outvars[0].aval.shape)]


def _moved(equation: Any, given: list[Any]) -> list[Any]:
    """Keys at other places: what happens to them happens to their numbers instead."""
    paths: list[tuple] = []
    operands = []
    for value in given:
        if isinstance(value, Keys):
            operands.append(np.arange(len(paths), len(paths) + len(value.paths), dtype=np.int32).reshape(value.shape))
            paths += value.paths
        else:
            operands.append(value)
    if any(isinstance(value, Unknown) for value in operands):
        cases = [value.paths for value in given if isinstance(value, Keys)]
        return [_some(equation, variable.aval.shape, cases) for variable in equation.outvars]
    outputs = _arithmetic(equation, operands)
    return [Keys([paths[number] for number in places.flat], places.shape) for places in outputs]


def _some(equation: Any, shape: Sequence[int], cases: list[list[tuple]]) -> Keys:
    """Keys of which it is not known which they are, unless all cases are one."""
    if equation.primitive.name == "select_n" and all(case == cases[0] for case in cases):
        return Keys(cases[0], shape)
    which = Unknown()
    return Keys([("some", which, place) for place in range(int(np.prod(shape)))], shape)


def _scan(equation: Any, given: list[Any], ledger: Ledger) -> list[Any]:
    params = equation.params
    constant, carried = _scan_sizes(params)
    consts, carry, rows = given[:constant], given[constant : constant + carried], given[constant + carried :]
    order = range(params["length"])
    stacked: list[list[Any]] = []
    for index in reversed(order) if params["reverse"] else order:
        outputs = _run(params["jaxpr"], [*consts, *carry, *(_row(value, index) for value in rows)], ledger)
        carry = outputs[:carried]
        stacked.append(outputs[carried:])
    if params["reverse"]:
        stacked.reverse()
    return [*carry, *map(_stack, zip(*stacked, strict=True))]


def _scan_sizes(params: Any) -> tuple[int, int]:
    """The numbers of constants and of carried values; JAX 0.11 has trees of the arguments in place of them."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def _row(value: Any, index: int) -> Any:
    if isinstance(value, Keys):
        size = len(value.paths) // value.shape[0]
        return Keys(value.paths[index * size : (index + 1) * size], value.shape[1:])
    return value[index] if isinstance(value, np.ndarray) else Unknown()


def _stack(values: tuple[Any, ...]) -> Any:
    if all(isinstance(value, Keys) for value in values):
        return Keys([path for value in values for path in value.paths], (len(values), *values[0].shape))
    return np.stack(values) if all(isinstance(value, np.ndarray) for value in values) else Unknown()


def _while(equation: Any, given: list[Any], ledger: Ledger) -> list[Any]:
    params = equation.params
    split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    cond_consts, body_consts, carry = given[: split[0]], given[split[0] : split[1]], given[split[1] :]
    for turn in range(LARGEST):
        (goes_on,) = _run(params["cond_jaxpr"], [*cond_consts, *carry], ledger)
        if isinstance(goes_on, Unknown) and turn >= 2:
            return [
                _some(equation, value.shape, [value.paths]) if isinstance(value, Keys) else Unknown() for value in carry
            ]
        if isinstance(goes_on, np.ndarray) and not goes_on.any():
            break
        carry = _run(params["body_jaxpr"], [*body_consts, *carry], ledger)
    return carry


def _cond(equation: Any, given: list[Any], ledger: Ledger) -> list[Any]:
    branches, (index, *operands) = equation.params["branches"], given
    if isinstance(index, np.ndarray):
        return _run(branches[int(np.clip(index, 0, len(branches) - 1))], operands, ledger)
    ledgers = [Ledger(ledger) for _ in branches]
    outputs = [_run(branch, operands, own) for branch, own in zip(branches, ledgers, strict=True)]
    ledger.merge(ledgers)
    return [
        _some(equation, values[0].shape, [value.paths for value in values])
        if isinstance(values[0], Keys)
        else Unknown()
        for values in zip(*outputs, strict=True)
    ]


RANDOM = {"random_seed": _seed, "random_bits": _draw, "random_split": _split, "random_fold_in": _fold_in}
LOOPS = {"scan": _scan, "while": _while, "cond": _cond}
