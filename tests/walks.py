"""A learner that compiles fast: a member is a random walk, and its fitness is its position.

For tests of what a population does with its members, where what the members learn does not matter.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rookery import hyperparams
from rookery.envs.base import DescriptorSpec, EnvSpec
from rookery.learners.base import Learner, Member
from rookery.types import Evaluation, Genotype


class Hyper(NamedTuple):
    rate: jax.Array | float = 0.1  # of the steps
    discount: jax.Array | float = 0.9
    noise: jax.Array | float = 0.5
    fixed: jax.Array | float = 7.0


SPACE = hyperparams.space(
    Hyper(),
    {
        "rate": hyperparams.LogUniform(1e-3, 1.0),
        "discount": hyperparams.OneMinusLog(0.5, 0.99),
        "noise": hyperparams.Uniform(0.0, 1.0),
    },
)


class State(NamedTuple):
    position: jax.Array  # [3]
    momentum: jax.Array  # [3], like an optimiser's

    @property
    def params(self) -> jax.Array:
        return self.position


def _start_states(key: jax.Array) -> jax.Array:
    return jax.random.normal(key, (4,))


def _start(position: jax.Array) -> State:
    return State(position, jnp.zeros_like(position))


def _init(key: jax.Array, hyper: Hyper, bank: jax.Array) -> Member:
    keys = jax.random.split(key, 2)
    return Member(_start(jax.random.normal(keys[0], (3,))), hyper, None, bank[:2], jax.random.normal(keys[1], (5,)))


def _load_genotype(member: Member, genotype: Genotype) -> Member:
    return member._replace(state=_start(genotype.params), hyper=genotype.hyper)


def _restart(member: Member, bank: jax.Array, key: jax.Array, needed: jax.Array) -> Member:
    del key
    return member._replace(env_state=jnp.where(needed, bank[:2], member.env_state))


def _step(member: Member, bank: jax.Array, key: jax.Array, generation: jax.Array) -> tuple[Member, dict]:
    del bank, generation
    stride = member.hyper.rate * (1.0 + member.hyper.noise * jax.random.normal(key, (3,)))
    momentum = member.hyper.discount * member.state.momentum + stride
    state = State(member.state.position + momentum, momentum)
    return member._replace(state=state), {"stride": jnp.sum(stride)}


def _evaluate(genotype: Genotype, bank: jax.Array, key: jax.Array) -> Evaluation:
    del bank, key
    fitness = jnp.sum(genotype.params)
    return Evaluation(fitness, jnp.zeros((0,)), fitness[None], jnp.ones((1,), jnp.int32), jnp.zeros((), jnp.int32))


def _evaluate_place(genotype: Genotype, bank: jax.Array, key: jax.Array) -> Evaluation:
    return _evaluate(genotype, bank, key)._replace(descriptor=genotype.params[:2])


PLACE = DescriptorSpec("place x, y", "final", (-4.0, -4.0), (4.0, 4.0))


def learner(descriptor: bool = False) -> Learner:
    """The learner; with `descriptor` the first two coordinates of a member are its descriptor."""
    spec = EnvSpec(
        "line", observation_size=1, action_size=1, episode_length=1, descriptor=PLACE if descriptor else None
    )
    evaluate = _evaluate_place if descriptor else _evaluate
    return Learner(
        _start_states, _init, _load_genotype, _restart, _step, evaluate, spec, SPACE, steps_per_generation=10
    )


def poison(state, member: int):
    """Set the position of one member to NaN."""
    learned = state.members.state
    learned = learned._replace(position=learned.position.at[member].set(jnp.nan))
    return state._replace(members=state.members._replace(state=learned))
