"""Compiles the stages of a program in parallel; each is traced once."""

import concurrent.futures
import os
from collections.abc import Callable
from functools import cached_property, partial

import jax
import numpy as np
from jax.stages import Lowered

from rookery.distributed import programs
from rookery.distributed.mesh import Mesh
from rookery.distributed.programs import Stages
from rookery.populations.base import Program, ProgramState
from rookery.populations.stages import Work
from rookery.storage.array_files import cache_folder

_COMPILERS = 2  # threads; XLA uses little more than one core per program, and more threads need more memory


class Compiler:
    """Traces and compiles the stages of a program.

    Tracing stays on the calling thread, since simulators change process-wide settings while they are traced. In the
    meantime XLA compiles on other threads, the longest programs first.

    Args:
      program: the program to compile.
      over: the mesh.
      template: shapes, dtypes and shardings of the program's state on that mesh.
    """

    def __init__(self, program: Program, over: Mesh, template: ProgramState):
        self._stages = programs.compile_stages(program, over)
        self._over, self._template, self._program = over, template, program
        self._key = jax.random.key(0)
        self._compiled: Stages | None = None

    @cached_property
    def work(self) -> Work:
        """Shapes, dtypes and shardings of the intermediate state of a generation in progress."""
        return programs.work_template(self._program, self._over, self._template)

    @cached_property
    def metrics(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the metrics of a generation."""
        return self._finish.out_info[1]

    @cached_property
    def _finish(self) -> Lowered:
        with jax.debug_nans(False):  # as where it is called
            return self._stages.finish.lower(self._template, self.work)

    def compile(self, creates: bool = True) -> Stages:
        """Compile all stages; a later call returns the same ones.

        Args:
          creates: compile the stages of `init` too; if False, `create` and `first_states` are not compiled.
        """
        if self._compiled is not None and (self._compiled.create is not None or not creates):
            return self._compiled
        stages, key, state = self._stages, self._key, self._template
        number = np.int32(0)
        init_keys, step_keys = programs.stage_keys(self._program)
        bank = programs.replicated(self._over, jax.eval_shape(stages.start_states, key))
        first_bank = programs.replicated(self._over, jax.eval_shape(stages.first_states, key))
        lowered: dict[str, Callable[[], Lowered]] = {
            "advance": partial(stages.advance.lower, state, self.work, number, number),
            "finish": lambda: self._finish,
            "start_states": partial(stages.start_states.lower, key),
            "create": partial(stages.create.lower, init_keys, first_bank),
            "begin": partial(stages.begin.lower, state, bank, step_keys),
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
