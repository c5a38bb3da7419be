"""Compiles the stages of a program in parallel; each is traced once."""

import concurrent.futures
import os
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jax.stages import Lowered, Traced

from rookery.distributed import programs
from rookery.distributed.mesh import Mesh
from rookery.distributed.programs import Stages
from rookery.populations.base import Program, ProgramState
from rookery.populations.stages import Work
from rookery.storage.array_files import cache_folder
from rookery.types import PyTree

_COMPILERS = 2  # threads; XLA uses little more than one core per program, and more threads need more memory


class Compiler:
    """Traces and compiles the stages of a program.

    Tracing stays on the calling thread, since simulators change process-wide settings while they are traced. In the
    meantime XLA compiles on other threads, the longest programs first.

    Args:
      program: the program to compile.
      over: the mesh.

    Raises:
      ValueError: as `programs.compile_program`.
    """

    def __init__(self, program: Program, over: Mesh):
        self._stages = programs.compile_stages(program, over)
        self._over, self._program = over, program
        self._key = jax.random.key(0)
        self._keys = programs.stage_keys(program)
        self._compiled: Stages | None = None

    @cached_property
    def template(self) -> ProgramState:
        """Shapes, dtypes and shardings of the program's state."""
        return programs.state_on(self._over, self._program, self._create.out_info)

    @cached_property
    def work(self) -> Work:
        """Shapes, dtypes and shardings of the intermediate state of a generation in progress."""
        return programs.work_on(self._over, self._begin.out_info[1])

    @cached_property
    def metrics(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the metrics of a generation."""
        return self._finish.out_info[1]

    @cached_property
    def _create(self) -> Traced:
        return self._stages.create.trace(self._keys[0], self._bank(self._stages.first_states))

    @cached_property
    def _begin(self) -> Traced:
        return self._stages.begin.trace(self.template, self._bank(self._stages.start_states), self._keys[1])

    @cached_property
    def _finish(self) -> Lowered:
        with jax.debug_nans(False):  # as where it is called
            return self._stages.finish.lower(self.template, self.work)

    def _bank(self, start_states: Any) -> PyTree:
        return programs.replicated(self._over, jax.eval_shape(start_states, self._key))

    def compile(self, creates: bool = True) -> Stages:
        """Compile all stages; a later call returns the same ones.

        Args:
          creates: compile the stages of `init` too; if False, `create` and `first_states` are not compiled.
        """
        if self._compiled is not None and (self._compiled.create is not None or not creates):
            return self._compiled
        stages, key, number = self._stages, self._key, np.int32(0)
        lowered: dict[str, Callable[[], Lowered]] = {
            "advance": partial(stages.advance.lower, self.template, self.work, number, number),
            "finish": lambda: self._finish,
            "start_states": partial(stages.start_states.lower, key),
            "create": self._create.lower,
            "begin": self._begin.lower,
            "first_states": partial(stages.first_states.lower, key),
        }
        identical = stages.first_states is stages.start_states
        left_out = {"first_states"} if identical or not creates else set()
        left_out |= set() if creates else {"create"}
        platform = self._over.devices.flat[0].platform  # not always that of this process
        with concurrent.futures.ThreadPoolExecutor(_COMPILERS) as pool:
            compiling = {
                name: pool.submit(programs.compile_lowered, lower(), name not in ("advance", "finish"), platform)
                for name, lower in lowered.items()
                if name not in left_out
            }
        compiled = {name: future.result() for name, future in compiling.items()}
        compiled.setdefault("first_states", compiled["start_states"])
        self._compiled = Stages(**{name: compiled.get(name) for name in Stages._fields})
        return self._compiled


def keep_compiled_programs() -> None:
    """Turn on JAX's persistent compilation cache, in rookery's cache folder unless the user has set another."""
    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
