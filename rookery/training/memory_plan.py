"""Plans the memory of a run on each device, and measures the memory in use.

A plan follows from the shapes of the state and the memory analysis of a compiled generation; nothing is computed or
allocated.
"""

import math
from typing import NamedTuple

import jax

from rookery.distributed import device_memory, programs
from rookery.distributed.device_memory import Gauge, Usage, size
from rookery.distributed.mesh import Mesh
from rookery.distributed.programs import Stages
from rookery.learners.base import Member
from rookery.populations.base import Program, ProgramState
from rookery.types import PyTree

BUFFERS, REPERTOIRE, SHARED = "replay buffers", "repertoire", "shared by all"
WORKING = "working memory of a generation"
_PARAMETERS, _OPTIMISERS = "parameters", "optimisers and targets"


class Part(NamedTuple):
    """One part of a program's state."""

    name: str
    """Name, as shown to the user."""
    total: int
    """Bytes on all devices together; replicated arrays count once per device."""
    share: int
    """Bytes on one device."""


class Plan(NamedTuple):
    """The planned memory of a run, in bytes on one device unless stated otherwise."""

    parts: tuple[Part, ...]
    """The parts of the state that are not empty."""
    devices: int
    """Number of devices."""
    available: int | None
    """Available memory; None if the backend does not report it."""
    separate_memory: bool
    """Whether every device has separate memory; the devices of a CPU share the machine's memory."""
    working: int | None = None
    """Working memory of a generation besides the state; None before compilation, or if it is not reported."""

    @property
    def held(self) -> int:
        """The state, which is in memory throughout the run."""
        return sum(part.share for part in self.parts)

    @property
    def copies(self) -> int:
        """The largest number of copies of the state that exist while a checkpoint is saved in the background.

        One copy is on the devices (see `leaf_specs.copy`). If the devices share the machine's memory, the serialised
        bytes count as a second copy, since floating-point numbers hardly compress.
        """
        return 1 if self.separate_memory else 2

    @property
    def peak(self) -> int:
        """The peak: a generation that runs while the state after the previous one is saved."""
        return self.held * (1 + self.copies) + (self.working or 0)


def plan(program: Program, over: Mesh, template: ProgramState | None = None) -> Plan:
    """Plan the memory of a program's state on each device of a mesh from its shapes.

    Args:
      program: the program to plan for.
      over: the mesh.
      template: shapes, dtypes and shardings of the program's state on this mesh; computed by default.
    """
    state = programs.template(program, over) if template is None else template
    shares = {name: sum(map(_share, jax.tree.leaves(tree))) for name, tree in _parts(state).items()}
    shares[_OPTIMISERS] -= shares[_PARAMETERS]
    count = over.devices.size
    parts = tuple(Part(name, share * count, share) for name, share in shares.items() if share)
    separate_memory = device_memory.device_limit(over) is not None
    return Plan(parts, count, device_memory.available(over), separate_memory)


def _share(leaf: jax.Array | jax.ShapeDtypeStruct) -> int:
    """Bytes on one device of a leaf, which has a sharding."""
    return math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize


def _parts(state: ProgramState) -> dict[str, PyTree]:
    """The parts of a state by name; the part of the optimisers also contains the parameters."""
    members, others = _split_members(state)
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


def _split_members(state: ProgramState) -> tuple[list[Member], list[jax.Array]]:
    """Split `state.members` into the `Member`s of learners and the leaves of user-defined members."""
    nodes = jax.tree.leaves(state.members, is_leaf=lambda node: isinstance(node, Member))
    members = [node for node in nodes if isinstance(node, Member)]
    return members, [node for node in nodes if not isinstance(node, Member)]


def working_memory(stages: Stages, held: int) -> int | None:
    """The largest memory that a stage of a run needs besides the state, on one device, from XLA's memory analysis.

    Args:
      stages: the compiled stages; None for those that are not compiled.
      held: bytes of the state on one device.

    Returns:
      Bytes of temporary memory, arguments and results, without the state among them and without results that reuse the
      memory of an argument; None if the backend does not report them.
    """
    reports = {name: stage.memory_analysis() for name, stage in stages._asdict().items() if stage is not None}
    sizes = [
        one.temp_size_in_bytes
        + one.argument_size_in_bytes
        + one.output_size_in_bytes
        - one.alias_size_in_bytes
        - (0 if name in _STATELESS else held)
        for name, one in reports.items()
        if one
    ]
    return max(0, *sizes) if sizes else None


_STATELESS = ("first_states", "start_states")  # the state is neither an argument nor the result of these stages


def check_fits(planned: Plan, work: PyTree) -> None:
    """Check before anything is compiled that the state and the work of a generation fit the memory.

    Args:
      planned: the plan of the state.
      work: shapes, dtypes and shardings of the work in progress.

    Raises:
      MemoryError: they do not; the message names the largest part and its settings.
    """
    planned = planned._replace(working=sum(map(_share, jax.tree.leaves(work))))
    if planned.available is not None and planned.held + (planned.working or 0) > planned.available:
        raise MemoryError(remedy(planned))


def remedy(planned: Plan) -> str | None:
    """An error message with the settings that determine the largest part; None if the plan fits, or if the available
    memory is unknown."""
    if planned.available is None or planned.peak <= planned.available:
        return None
    costs = {part.name: (1 + planned.copies) * part.share for part in planned.parts} | {WORKING: planned.working or 0}
    largest = max(costs, key=costs.__getitem__)
    return (
        f"the run needs {size(planned.peak)} on each device while it saves, but {size(planned.available)} are "
        f"available; the largest part, {largest}, needs {size(costs[largest])}; {_REMEDIES.get(largest, _REMEDY)}."
    )


_REMEDY = "give a smaller population, or use devices with more memory"
_REMEDIES = {
    BUFFERS: "give a smaller buffer_size or population, or use devices with more memory",
    REPERTOIRE: "give fewer cells, or shard_repertoire on several devices",
    SHARED: "give a smaller league_size, buffer_size, critic or population, whichever the run has, or use devices with "
    "more memory",
    WORKING: "give fewer num_envs, start_states or eval_episodes, or a smaller population",
}


class Meter:
    """Compares the planned with the measured memory of a run; create it before the state is initialised.

    Args:
      program: the program that runs.
      over: the mesh.
      template: shapes, dtypes and shardings of the program's state on the mesh.
    """

    def __init__(self, program: Program, over: Mesh, template: ProgramState):
        self._planned = plan(program, over, template)
        self._gauge = Gauge(over)

    def watch(self, stages: Stages, state: ProgramState) -> None:
        """Start measuring once the first state is ready, so that memory used by compilation is not counted.

        Args:
          stages: the compiled stages.
          state: the first state.
        """
        self._planned = self._planned._replace(working=working_memory(stages, self._planned.held))
        jax.block_until_ready(state)
        self._gauge.watch(
            sum(shard.data.nbytes for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards)
        )

    def read(self) -> Usage:
        """The planned memory, and the memory used so far."""
        return Usage(self._planned.held, self._planned.peak, self._gauge.read())
