"""Evolution strategies on Brax's hopper: `es` beside OpenES of evosax.

    python -m benchmarks.learning.evolution [--quick] [--generations 100] [--seeds 5]

All contenders evolve the same policy (two hidden layers of 32) with 64 directions and their opposites, one episode
each, and Adam with the same rate, decay and noise. They differ in the code; `es` normalises observations by default.
All seeds are one compiled call per generation. Every tenth generation the policy itself plays 16 episodes from new
start states.

Needs `pip install evosax` for its contender, which is left out without it.
"""

import importlib.util
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import rookery
from benchmarks import harness
from rookery import hyperparams, trees
from rookery.envs.base import Environment
from rookery.learners.base import Bank, Learner, genotype
from rookery.report import statistics
from rookery.types import Array, Genotype, Key, PyTree

TASK, DIRECTIONS, EVERY, EPISODES = "hopper", 64, 10, 16
SETTINGS = {"learning_rate": 0.02, "noise_scale": 0.1, "weight_decay": 0.005}


class Contender(NamedTuple):
    """An evolution strategy of one seed as pure functions."""

    init: Callable[[Key, Bank], PyTree]
    advance: Callable[[PyTree, Bank, Key], PyTree]
    """State, start states, key -> state after one generation."""
    policy: Callable[[PyTree], Genotype]


def main() -> None:
    made = harness.parser(__doc__)
    made.add_argument("--generations", type=int, default=100, help="(%(default)s)")
    made.add_argument("--seeds", type=int, default=5, help="(%(default)s)")
    options = harness.parse(made)
    directions, every = (2, 1) if options.quick else (DIRECTIONS, EVERY)
    if options.quick:
        options.generations, options.seeds = 2, 2
    load, rows = harness.load(), []
    env = rookery.make(TASK, episode_length=20) if options.quick else rookery.make(TASK)
    judge = learner_of(env, directions, normalizes=False, episodes=EPISODES)
    made_of = {
        "es": partial(ours, env, directions, True),
        "es, observations as they are": partial(ours, env, directions, False),
    }
    if importlib.util.find_spec("evosax"):
        made_of["evosax"] = partial(evosax, env, directions)
    for name, make in made_of.items():
        started = time.perf_counter()
        curve = scores(make(), judge, options.generations, every, options.seeds)  # [evaluations, seeds]
        seconds = time.perf_counter() - started
        middle = statistics.estimate(statistics.interquartile_mean, curve[-1])
        row = {"contender": name, "generations": options.generations, "return": middle.value}
        rows.append(row | {"low": middle.low, "high": middle.high, "seconds": seconds, "curve": curve.tolist()})
        harness.show(rows[-1:])
    harness.report("learning_evolution", options, rows, load)


def scores(contender: Contender, judge: Learner, generations: int, every: int, seeds: int) -> np.ndarray:
    """The mean return of the policy of each seed after every `every` generations."""

    def advance(state: PyTree, key: Key) -> PyTree:
        bank_key, key = jax.random.split(key)
        return contender.advance(state, judge.start_states(bank_key), key)

    def score(state: PyTree, key: Key) -> Array:
        bank_key, key = jax.random.split(key)
        return judge.evaluate(contender.policy(state), judge.start_states(bank_key), key).fitness

    keys = jax.random.split(jax.random.key(0), seeds)
    banks = jax.vmap(judge.start_states)(keys)
    state = jax.jit(jax.vmap(contender.init))(jax.vmap(partial(jax.random.fold_in, data=0))(keys), banks)
    advance, score = jax.jit(jax.vmap(advance), donate_argnums=0), jax.jit(jax.vmap(score))
    found = []
    for generation in range(1, generations + 1):
        state = advance(state, jax.vmap(partial(jax.random.fold_in, data=2 * generation))(keys))
        if generation % every == 0:
            found.append(score(state, jax.vmap(partial(jax.random.fold_in, data=2 * generation + 1))(keys)))
            print(f"generation {generation}: {np.asarray(found[-1]).round(0).tolist()}", flush=True)
    return np.asarray(found)


def learner_of(env: Environment, directions: int, normalizes: bool, episodes: int) -> Learner:
    policy = rookery.qd.policy(env.spec, rookery.qd.PolicyConfig(hidden_sizes=(32, 32)))
    return rookery.evolution_strategy(
        policy,
        env,
        directions=directions,
        normalize_observations=normalizes,
        eval_episodes=episodes,
        start_states=2 * DIRECTIONS,
    )


def ours(env: Environment, directions: int, normalizes: bool) -> Contender:
    """The learner of `es`."""
    learner = learner_of(env, directions, normalizes, 1)
    hyper = hyperparams.defaults(rookery.choose(learner.space, **SETTINGS))

    def advance(state: PyTree, bank: Bank, key: Key) -> PyTree:
        return learner.step(state, bank, key, jnp.zeros((), jnp.int32))[0]

    return Contender(lambda key, bank: learner.init(key, hyper, bank), advance, genotype)


def evosax(env: Environment, directions: int) -> Contender:
    """OpenES of evosax, whose candidates play the same episodes as those of `es`."""
    from evosax.algorithms import Open_ES

    learner = learner_of(env, directions, normalizes=False, episodes=1)
    hyper = hyperparams.defaults(learner.space)

    def initial(key: Key, bank: Bank) -> PyTree:
        return learner.init(key, hyper, bank).state.params

    shapes = jax.eval_shape(initial, jax.random.key(0), jax.eval_shape(learner.start_states, jax.random.key(0)))
    solution = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    strategy = Open_ES(
        2 * directions,
        solution,
        optimizer=optax.adamw(SETTINGS["learning_rate"], weight_decay=SETTINGS["weight_decay"]),
        std_schedule=optax.constant_schedule(SETTINGS["noise_scale"]),
    )

    def init(key: Key, bank: Bank) -> PyTree:
        state_key, params_key = jax.random.split(key)
        return strategy.init(state_key, initial(params_key, bank), strategy.default_params)

    def advance(state: PyTree, bank: Bank, key: Key) -> PyTree:
        ask_key, tell_key, play_key = jax.random.split(key, 3)
        candidates, state = strategy.ask(ask_key, state, strategy.default_params)

        def play(params: PyTree, number: Array) -> Array:
            start = trees.take(bank, number[None] % (2 * DIRECTIONS))
            key = jax.random.fold_in(play_key, number)
            return learner.evaluate(Genotype(params, hyper, None), start, key).fitness

        fitness = jax.vmap(play)(candidates, jnp.tile(jnp.arange(directions), 2))
        return strategy.tell(tell_key, candidates, -fitness, state, strategy.default_params)[0]

    return Contender(init, advance, lambda state: Genotype(strategy.get_mean(state), hyper, None))


if __name__ == "__main__":
    main()
