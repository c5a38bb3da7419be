"""What a run will hold on each device, what would not fit, and what it used in the end.

A plan needs shapes only, and a compiled generation says what it works with; nothing is computed or allocated.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from rookery.buffers import BufferState
from rookery.distributed import device_memory, programs
from rookery.distributed.device_memory import Gauge, MemoryWarning, Usage, size
from rookery.distributed.mesh import Mesh
from rookery.learners.base import Member
from rookery.populations.base import Program, ProgramState
from rookery.types import PyTree

BUFFERS, REPERTOIRE, SHARED = "replay buffers", "repertoire", "shared by all"
WORKING = "working memory of a generation"
_PARAMETERS, _OPTIMISERS = "parameters", "optimisers and targets"


class Part(NamedTuple):
    """One part of a state."""

    name: str
    total: int  # bytes on all devices together; what stands whole on each counts as often
    share: int  # bytes on one device


class Sizes(NamedTuple):
    """What the parts grow with."""

    devices: int
    population: int  # P; 0 without members
    buffer_size: int  # rows of a member's replay buffer; 0 without one
    cells: int  # C; 0 without a repertoire
    divides_cells: bool  # each device has its share of the cells


class Plan(NamedTuple):
    """What a run will hold; bytes on one device unless it says otherwise."""

    parts: tuple[Part, ...]  # of the state, none of them empty
    sizes: Sizes
    available: int | None  # None where nobody tells
    own_memory: bool  # every device has memory of its own; a CPU's devices share that of the machine
    working: int | None = None  # a generation's, beside the state; None before it is compiled, or where nobody tells

    @property
    def held(self) -> int:
        """The state, from beginning to end."""
        return sum(part.share for part in self.parts)

    @property
    def copies(self) -> int:
        """How often a checkpoint has the state while it is saved in the background, at most.

        Once on the devices (see `leaves.copy`); where they share the machine's memory, the bytes on their way to the
        disk are there too, as many as numbers that cannot be compressed have.
        """
        return 1 if self.own_memory else 2

    @property
    def peak(self) -> int:
        """The most at once: a generation that runs while the one before it is saved."""
        return self.held * (1 + self.copies) + (self.working or 0)


def plan(program: Program, over: Mesh, template: ProgramState | None = None) -> Plan:
    """What the state of a program will take on each device of a mesh; from shapes alone.

    Args:
      program: any.
      over: the mesh.
      template: of the program on this mesh, where it is known already.
    """
    state = programs.template(program, over) if template is None else template
    shares = {name: sum(map(_share, jax.tree.leaves(tree))) for name, tree in _parts(state).items()}
    shares[_OPTIMISERS] -= shares[_PARAMETERS]
    buffers = [member.buffer for member in _lives(state)[0] if isinstance(member.buffer, BufferState)]
    count = over.devices.size
    sizes = Sizes(
        devices=count,
        population=_length(state.members, 0),
        buffer_size=max((_length(buffer.rows, 1) for buffer in buffers), default=0),
        cells=_length(state.cells, 0),
        divides_cells=program.divides_cells,
    )
    parts = tuple(Part(name, share * count, share) for name, share in shares.items() if share)
    return Plan(parts, sizes, device_memory.available(over), own_memory=device_memory.own(over) is not None)


def _share(leaf: Any) -> int:
    """Bytes of a leaf (an array, or the shape of one, with its sharding) on one device."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _parts(state: ProgramState) -> dict[str, PyTree]:
    """A state's parts; that of the optimisers still has the parameters in it."""
    members, others = _lives(state)
    return {
        _PARAMETERS: [getattr(member.state, "params", ()) for member in members],
        _OPTIMISERS: [member.state for member in members],
        "hyper-parameters and statistics": [(member.hyper, member.normalizer) for member in members],
        BUFFERS: [member.buffer for member in members],
        "environment states": [member.env_state for member in members],
        "members": others,
        REPERTOIRE: state.cells,
        SHARED: state.shared,
    }


def _lives(state: ProgramState) -> tuple[list[Member], list[Any]]:
    """Members as learners make them, and leaves of whatever else lives there."""
    lives = jax.tree.leaves(state.members, is_leaf=lambda node: isinstance(node, Member))
    members = [life for life in lives if isinstance(life, Member)]
    return members, [life for life in lives if not isinstance(life, Member)]


def _length(tree: PyTree, axis: int) -> int:
    leaves = jax.tree.leaves(tree)
    return leaves[0].shape[axis] if leaves else 0


def working_memory(*compiled: Any) -> int | None:
    """Bytes that the largest of some compiled programs takes on a device beside what it is given, by its own account.

    Args:
      compiled: what `jax.stages.Lowered.compile` gave, such as the stages of a generation.

    Returns:
      Temporary memory, and results that do not take an argument's place; None where the backend does not tell.
    """
    told = [program.memory_analysis() for program in compiled]
    sizes = [one.temp_size_in_bytes + one.output_size_in_bytes - one.alias_size_in_bytes for one in told if one]
    return max(sizes, default=None)


def remedy(planned: Plan) -> str | None:
    """What does not fit and what would, in one sentence; None if everything fits, or nobody tells what there is.

    What would fit is worked out by the bytes of a member, a row and a cell; working memory is taken to grow with the
    members of a device.
    """
    if planned.available is None or planned.peak <= planned.available:
        return None
    costs = _costs(planned)
    largest = max(costs, key=costs.__getitem__)
    found = [_fewer_members(planned), _more_devices(planned)]
    if largest == BUFFERS:
        found.append(_smaller_buffers(planned))
    if largest == REPERTOIRE:
        found += [_fewer_cells(planned), _divided_cells(planned)]
    what = " or ".join(text for text in found if text)
    return (
        f"the run needs {size(planned.peak)} on each device while it saves, and there are {size(planned.available)}; "
        f"the largest part, {largest}, needs {size(costs[largest])}; "
        f"{what + ' would fit' if what else 'use less of it, or devices with more memory'}."
    )


def _costs(planned: Plan) -> dict[str, int]:
    """What each part takes on a device at the peak, with its copies in a checkpoint."""
    times = 1 + planned.copies
    return {part.name: times * part.share for part in planned.parts} | {WORKING: planned.working or 0}


def _that_fit(planned: Plan, count: int, cost: int) -> int:
    """How many instead of `count`, where these take `cost` bytes of the peak in equal shares."""
    assert planned.available is not None
    return max(planned.available - (planned.peak - cost), 0) * count // cost


def _fixed(planned: Plan) -> int:
    """What of the peak does not fall with the members of a device."""
    return sum(cost for name, cost in _costs(planned).items() if name in (REPERTOIRE, SHARED))


def _fewer_members(planned: Plan) -> str | None:
    sizes = planned.sizes
    if not sizes.population:
        return None
    each = _that_fit(planned, sizes.population // sizes.devices, planned.peak - _fixed(planned))
    return f"a population of {each * sizes.devices}" if each else None


def _more_devices(planned: Plan) -> str | None:
    """Where devices have memory of their own, as many as the members can be divided over."""
    sizes, fixed = planned.sizes, _fixed(planned)
    cells = _costs(planned).get(REPERTOIRE, 0) if sizes.divides_cells else 0
    divided = (planned.peak - fixed + cells) * sizes.devices
    for count in range(sizes.devices + 1, sizes.population + 1 if planned.own_memory else 0):
        whole = sizes.population % count == 0 and not (cells and sizes.cells % count)
        if whole and fixed - cells + -(-divided // count) <= (planned.available or 0):
            return f"{count} devices"
    return None


def _smaller_buffers(planned: Plan) -> str | None:
    rows = _that_fit(planned, planned.sizes.buffer_size, _costs(planned)[BUFFERS])
    return f"a buffer_size of {rows}" if rows else None


def _fewer_cells(planned: Plan) -> str | None:
    sizes = planned.sizes
    count = sizes.devices if sizes.divides_cells else 1
    each = _that_fit(planned, sizes.cells // count, _costs(planned)[REPERTOIRE])
    return f"a repertoire of {each * count} cells" if each else None


def _divided_cells(planned: Plan) -> str | None:
    sizes, cells = planned.sizes, _costs(planned)[REPERTOIRE]
    if sizes.divides_cells or sizes.devices == 1 or sizes.cells % sizes.devices:
        return None
    fits = planned.peak - cells + cells // sizes.devices <= (planned.available or 0)
    return "this one with shard_repertoire" if fits else None


class Meter:
    """Follows the memory of a run, from before its state is made.

    Args:
      program: what runs.
      over: the mesh.
      template: of the program on it.

    Warns:
      MemoryWarning: the state alone is larger than the memory that there is.
    """

    def __init__(self, program: Program, over: Mesh, template: ProgramState):
        self._planned = plan(program, over, template)
        self._gauge = Gauge(over)
        if self._planned.available is not None and self._planned.held > self._planned.available:
            message = (
                f"the run's state alone takes {size(self._planned.held)} on each device, and there are "
                f"{size(self._planned.available)}; `rookery train ... --plan` says what would fit."
            )
            warnings.warn(message, MemoryWarning, stacklevel=3)

    def begin(self, stages: Sequence[Any], state: ProgramState) -> None:
        """Note the compiled stages and wait for the first state; what compiling took is left out."""
        self._planned = self._planned._replace(working=working_memory(*stages))
        jax.block_until_ready(state)
        self._gauge.begin(
            sum(shard.data.nbytes for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards)
        )

    def read(self) -> Usage:
        """What was planned, and used until now."""
        return Usage(self._planned.held, self._planned.peak, self._gauge.read())
