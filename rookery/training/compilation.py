"""Compiling a program: its stages side by side, each traced once."""

import concurrent.futures
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from rookery.distributed import programs
from rookery.distributed.mesh import Mesh
from rookery.distributed.programs import Stages
from rookery.populations.base import Program, ProgramState
from rookery.populations.stages import Work

_COMPILERS = 2  # threads; XLA compiles one program on little more than one core, and more at once take more memory


class Compiler:
    """Traces and compiles what a run of a program needs.

    Tracing stays on the calling thread, since simulators change settings of the process while they are traced; XLA
    compiles on other threads meanwhile, the longest programs first.

    Args:
      program: any.
      over: the mesh.
      template: of the program's state on that mesh.
    """

    def __init__(self, program: Program, over: Mesh, template: ProgramState):
        self._stages = programs.compile_stages(program, over)
        self._over, self._template, self._program = over, template, program
        self._key = jax.random.key(0)

    @cached_property
    def work(self) -> Work:
        """The template of what a generation in progress holds."""
        return programs.work_template(self._program, self._over, self._template)

    @cached_property
    def metrics(self) -> Any:
        """Shapes of the metrics of a generation."""
        return self._finish.out_info[1]

    @cached_property
    def _finish(self) -> Any:
        return self._stages.finish.lower(self._template, self.work)

    def compile(self, creates: bool = True) -> Stages:
        """All stages, compiled.

        Args:
          creates: those of `init` too; without them they are None.
        """
        stages, key, state = self._stages, self._key, self._template
        number = np.int32(0)
        init_keys, step_keys = programs.stage_keys(self._program)
        bank = programs.whole(self._over, jax.eval_shape(stages.start_states, key))
        first_bank = programs.whole(self._over, jax.eval_shape(stages.first_states, key))
        lowered: dict[str, Callable[[], Any]] = {
            "advance": partial(stages.advance.lower, state, self.work, number, number),
            "finish": lambda: self._finish,
            "start_states": partial(stages.start_states.lower, key),
            "create": partial(stages.create.lower, init_keys, first_bank),
            "begin": partial(stages.begin.lower, state, bank, step_keys),
            "first_states": partial(stages.first_states.lower, key),
        }
        alike = stages.first_states is stages.start_states
        left_out = {"first_states"} if alike or not creates else set()
        left_out |= set() if creates else {"create"}
        with concurrent.futures.ThreadPoolExecutor(_COMPILERS) as pool:
            compiling = {
                name: pool.submit(programs.compile_lowered, lower(), once=name not in ("advance", "finish"))
                for name, lower in lowered.items()
                if name not in left_out
            }
        compiled = {name: future.result() for name, future in compiling.items()}
        compiled.setdefault("first_states", compiled["start_states"])
        return Stages(**{name: compiled.get(name) for name in Stages._fields})
