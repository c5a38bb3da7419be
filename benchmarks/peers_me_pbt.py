"""QDax's ME-PBT: PBT-SAC inside a distributed MAP-Elites, on one device.

    python -m benchmarks.peers_me_pbt [--quick] [--generations 5]

A generation evaluates the genotypes of the emitter (children of elites, and the trained members), adds them to the
repertoire, runs the exploit step, and trains the members. QDax trains the initial population before the first
generation, and never evaluates the members trained in the last generation. The benchmark uses a new key in every
generation, whereas QDax's notebooks pass the same keys in each.

QDax's foot contacts are NaN for every policy that falls before the time limit, and NaN is assigned to cell 0: its
repertoire contains one elite until a policy walks for a whole episode. `--descriptor` corrects this within QDax's
interface. With any descriptor, its policies can be evaluated by Rookery (`reevaluate`).
"""

import functools
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

import rookery
from benchmarks import harness, work
from benchmarks import qdax_me_pbt as parts
from benchmarks.peers_map_elites import scores
from benchmarks.qdax_me_pbt import QUICK, Settings
from rookery.envs.wrappers import auto_reset
from rookery.learners import evaluation
from rookery.learners.base import EvaluationConfig
from rookery.types import Array, Genotype, Key, Observation, PyTree


class Elites(NamedTuple):
    """A repertoire of QDax."""

    genotypes: Any  # QDax's training states, leaves [C, ...]
    fitnesses: np.ndarray  # [C], -inf where a cell is empty
    descriptors: np.ndarray  # [C, D]
    centroids: np.ndarray  # [C, D]


class State(NamedTuple):
    """State between generations; leaves of the first two fields have a leading axis for the single device."""

    repertoire: Any
    emitter: Any
    key: Key


class Program(NamedTuple):
    """QDax's compiled ME-PBT."""

    begin: Callable[[Key], State]
    generation: Callable[[State], State]
    compiled: harness.Compiled  # a generation


@functools.cache
def make(settings: Settings) -> Program:
    """Build and compile QDax's ME-PBT; all seeds share the program, the cells and the start states of evaluations.

    Raises:
      SystemExit: QDax is not installed.
    """
    try:
        from qdax.core.distributed_map_elites import DistributedMAPElites
        from qdax.utils.metrics import default_qd_metrics
    except ImportError as error:
        raise SystemExit(f"{work.INSTALL} ({error})") from error
    centroid_key, eval_key, key = jax.random.split(jax.random.key(0), 3)
    agent = parts.agent_of(settings)
    num_envs = settings.pg_population * settings.num_envs
    environment = work.qdax_environment(settings.task, num_envs, settings.episode_length)
    algorithm = DistributedMAPElites(
        scoring_function=parts.scoring(settings, agent, eval_key),
        emitter=parts.counting(parts.emitter_of(settings, agent, environment)),
        metrics_function=partial(default_qd_metrics, qd_offset=-settings.offset),  # QDax adds its offset
    )
    devices = jax.devices()[:1]
    init = algorithm.get_distributed_init_fn(parts.centroids_of(settings, environment, centroid_key), devices)
    update = algorithm.get_distributed_update_fn(num_iterations=1, devices=devices)
    begin = partial(_begin, settings, agent, environment, init)
    compiled = _compile(update, begin(key))
    return Program(begin, partial(_generation, compiled.call), compiled)


def _begin(settings: Settings, agent: Any, environment: Any, init: Callable, key: Key) -> State:
    """The repertoire with the initial population, trained once. QDax needs raw keys here."""
    agent_key, init_key, key = jax.random.split(key, 3)
    sizes = environment.action_size, environment.observation_size
    start = agent.get_init_fn(settings.population, *sizes, buffer_size=1)
    states, _ = jax.jit(start)(jax.random.key_data(agent_key))
    states = jax.vmap(type(states).empty_optimizers_states)(states)
    repertoire, emitter_state, _ = init(
        genotypes=jax.tree.map(lambda leaf: leaf[None], states), key=jax.random.key_data(init_key)[None]
    )
    return State(repertoire, emitter_state, key)


def _arguments(state: State, key: Key) -> tuple:
    return state.repertoire, state.emitter, jax.random.key_data(key)[None]


def _compile(update: Any, state: State) -> harness.Compiled:
    """`harness.compile_program` for a function that is already mapped over devices."""
    started = time.perf_counter()
    lowered = update.lower(*_arguments(state, state.key))
    traced = time.perf_counter()
    call = lowered.compile()
    return harness.Compiled(call, traced - started, time.perf_counter() - traced)


def _generation(update: Callable, state: State) -> State:
    key, update_key = jax.random.split(state.key)
    repertoire, emitter_state, _ = update(*_arguments(state, update_key))
    return State(repertoire, emitter_state, key)


def timed(settings: Settings, seed: int = 0) -> tuple[harness.Compiled, harness.Loop]:
    """The program of a generation, and a call for `harness.interleave` that runs the next one."""
    program = make(settings)
    state = program.begin(jax.random.key(seed))
    return program.compiled, harness.Loop(lambda state: (program.generation(state), None), harness.Held(state))


def peak_memory(settings: Settings, generations: int = 2) -> float:
    """Peak memory in GB of this process after `generations` generations; it must do nothing else."""
    _, loop = timed(settings)
    for _ in range(generations):
        loop()
    return harness.peak_memory()


def learn(settings: Settings, seed: int, generations: int, offset: float) -> tuple[list[dict[str, Any]], Elites]:
    """Run QDax's ME-PBT.

    Args:
      settings: settings of the run.
      seed: seed of everything except the cells and the start states of QDax's evaluation.
      generations: number of evaluations after that of the initial population.
      offset: the return that contributes 0 to the QD score.

    Returns:
      One row per evaluation, including that of the initial population: the scores by QDax's evaluation, the number of
      occupied cells, the number of evaluations with a NaN descriptor, and the environment steps trained before; and the
      final repertoire.
    """
    program = make(settings)
    state, rows = program.begin(jax.random.key(seed)), []
    for generation in range(generations + 1):
        state = program.generation(state) if generation else state
        elites = elites_of(state)
        row = {"generation": generation, "steps": generation * settings.steps_per_generation}
        row |= scores(elites.fitnesses, offset) | {"cells": int(np.isfinite(elites.fitnesses).sum())}
        rows.append(row | {"invalid": int(state.emitter[1][0]), "evaluations": settings.population})
    return rows, elites_of(state)


def elites_of(state: State) -> Elites:
    """The repertoire of the single device."""
    found = jax.tree.map(lambda leaf: leaf[0], state.repertoire)
    fitnesses = np.asarray(found.fitnesses).reshape(-1)
    return Elites(found.genotypes, fitnesses, np.asarray(found.descriptors), np.asarray(found.centroids))


def act(agent: Any, params: PyTree, observation: Observation) -> Array:
    """QDax's deterministic action `[A]`; its key argument is unused."""
    return agent.select_action(observation.features, params, None, deterministic=True)


def reevaluate(
    settings: Settings, elites: Elites, episodes: int, seed: int, chunk: int = 16
) -> tuple[np.ndarray, np.ndarray]:
    """Evaluate QDax's policies with Rookery's evaluation, all from the same start states.

    Args:
      settings: settings of the run that created the repertoire.
      elites: the repertoire.
      episodes: full deterministic episodes for each policy.
      seed: seed of the start states.
      chunk: number of policies evaluated at once.

    Returns:
      Fitness `[C]`, -inf for an empty cell, and descriptor `[C, D]`, 0 for an empty cell; in the order of QDax's cells,
      which need not be the cells of these descriptors.
    """
    environment = rookery.make(settings.task, episode_length=settings.episode_length)
    policy = partial(act, parts.agent_of(settings))
    config = EvaluationConfig(eval_episodes=episodes, start_states=episodes)
    bank_key, key = jax.random.split(jax.random.key(seed))
    bank = auto_reset.start_bank(environment, bank_key, episodes)

    evaluator_config = evaluation.evaluator(policy, environment, config)

    def evaluator(params: PyTree) -> tuple[Array, Array]:
        found = evaluation.evaluate(evaluator_config, Genotype(params, None, None), bank, key)
        return found.fitness, found.descriptor

    occupied = np.flatnonzero(np.isfinite(elites.fitnesses))
    policies = jax.tree.map(lambda leaf: leaf[occupied], elites.genotypes.policy_params)
    evaluated = jax.jit(partial(jax.lax.map, evaluator, batch_size=chunk))(policies)
    fitness = np.full(elites.fitnesses.shape, -np.inf)
    descriptor = np.zeros(elites.descriptors.shape)
    fitness[occupied], descriptor[occupied] = jax.device_get(evaluated)
    return fitness, descriptor


def main() -> None:
    made = harness.parser(__doc__, rounds=5)
    made.add_argument("--generations", type=int, default=5, help="generations of the printed run (%(default)s)")
    made.add_argument(
        "--episodes", type=int, default=4, help="episodes of the final evaluation of each policy (%(default)s)"
    )
    made.add_argument("--descriptor", choices=parts.DESCRIPTORS, default="own", help="(%(default)s)")
    made.add_argument("--memory", action="store_true", help="only print the peak memory of two generations in GB")
    options = harness.parse(made)
    settings = (QUICK if options.quick else Settings())._replace(descriptor=options.descriptor)
    if options.memory:
        print(json.dumps(peak_memory(settings)))
        return
    compiled, loop = timed(settings)
    seconds = harness.interleave({"qdax": loop}, options.rounds)["qdax"]
    row = {"trace_s": compiled.trace_seconds, "compile_s": compiled.compile_seconds}
    harness.show([{"seconds": seconds.median, "best": seconds.best, **row, "temporary_gb": compiled.temporary_gb}])
    rows, elites = learn(settings, 0, options.generations, settings.offset)
    harness.show(rows)
    fitness, descriptor = reevaluate(settings, elites, options.episodes, seed=1)
    harness.show([compare(elites, fitness, descriptor, int(cell)) for cell in np.flatnonzero(np.isfinite(fitness))])


def compare(elites: Elites, fitness: np.ndarray, descriptor: np.ndarray, cell: int) -> dict[str, Any]:
    """A policy's scores by QDax's and by Rookery's evaluation."""
    feet = {"their_feet": elites.descriptors[cell], "our_feet": descriptor[cell]}
    shown = {name: " ".join(f"{share:.2f}" for share in shares) for name, shares in feet.items()}
    return {"cell": cell, "theirs": float(elites.fitnesses[cell]), "ours": float(fitness[cell]), **shown}


if __name__ == "__main__":
    main()
