"""A generation of PGA-ME or DCRL-ME: Rookery beside QDax, with equal settings.

    python -m benchmarks.pga_me [--quick] [--methods pga-me dcrl-me] [--task walker2d_uni] [--before 10]

Rookery's evaluations and variations are divided over two cores as two devices, as on the command line; QDax uses both
cores within one device. Both evaluate on Rookery's task (see `peers_policy_gradient`). QDax evaluates as its own
scoring functions do: a scan of all steps of an episode, which stores every transition. Each timed call is the next
generation of a run, after `--before` generations without timing.
"""

import itertools
import math
import time
from typing import Any

import jax

from benchmarks import harness, peers_policy_gradient
from benchmarks.peers_policy_gradient import METHODS, Settings, dcrl_settings
from rookery.distributed import layout, programs
from rookery.distributed.mesh import make_mesh, use_cores
from rookery.learners import evaluation
from rookery.learners.episode_loop import EpisodeLoop
from rookery.types import Key, PyTree


def ours(settings: Settings) -> tuple[harness.Compiled, harness.Loop]:
    """Rookery's compiled generation, and a call that runs the next one."""
    devices = make_mesh()
    program = peers_policy_gradient.program(
        settings, placement=layout.placement(devices, cells=math.prod(settings.grid))
    )
    compiled = programs.compile_program(program, devices)
    state, keys = compiled.init(jax.random.key(0)), itertools.count()
    started = time.perf_counter()
    lowered = compiled.step.lower(state, jax.random.key(0))
    traced = time.perf_counter()
    step = harness.Compiled(lowered.compile(), traced - started, time.perf_counter() - traced)
    return step, harness.Loop(lambda state: step.call(state, jax.random.key(next(keys))), harness.Held(state))


def theirs(settings: Settings) -> tuple[harness.Compiled, harness.Loop]:
    """QDax's compiled generation, and a call that runs the next one."""
    kept, evaluation.run_episodes = evaluation.run_episodes, _unroll
    peer = peers_policy_gradient.qdax(settings)
    carry = peer.begin(jax.random.key(0))
    evaluation.run_episodes = kept
    return peer.compiled, harness.Loop(lambda carry: (peer.generation(carry), None), harness.Held(carry))


def _unroll(loop: EpisodeLoop, genotype: PyTree, key: Key, start: Any, record: PyTree = ()) -> tuple[Any, PyTree]:
    """All steps of an episode, whether it has ended or not; the arguments and results are those of `run_episodes`."""
    times = jax.numpy.arange(loop.length)
    run, rows = jax.lax.scan(lambda run, time: loop.advance(genotype, key, run, time), start, times)
    return run, rows if jax.tree.leaves(record) else ()


CONTENDERS = {"rookery": ours, "qdax": theirs}


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    made.add_argument("--task", default="walker2d_uni", help="a task with a descriptor (%(default)s)")
    made.add_argument("--episode-length", type=int, default=250, help="steps of an episode at most (%(default)s)")
    made.add_argument("--before", type=int, default=10, help="generations before the timed ones (%(default)s)")
    made.add_argument("--devices", type=int, default=2, help="of Rookery (%(default)s)")
    options = harness.parse(made)
    common: dict[str, Any] = {"task": options.task, "episode_length": options.episode_length}
    if options.quick:
        options.before = 1
        small = {"batch_size": 32, "critic_steps": 10, "policy_gradient_steps": 4, "buffer_size": 10_000}
        common |= {**small, "hidden_sizes": (8,), "task": "point_trap", "episode_length": 20}
    load = harness.load()
    use_cores(options.devices)
    rows = []
    for method in options.methods:
        settings = dcrl_settings(**common) if method == "dcrl-me" else Settings(**common)
        both = {name: make(settings) for name, make in CONTENDERS.items()}
        calls = {name: loop for name, (_, loop) in both.items()}
        times = harness.interleave(calls, options.rounds, warmup=options.before)
        for name, (compiled, _) in both.items():
            row = {"method": method, "contender": name, "seconds": times[name].median, "best_s": times[name].best}
            row |= harness.speedup(times[name], times["qdax"])
            rows.append(row | {"compile_s": compiled.seconds, "temporary_gb": compiled.temporary_gb})
    harness.report("pga_me", options, rows, load)


if __name__ == "__main__":
    main()
