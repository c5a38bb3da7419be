"""The precision of matrix products: that of networks is chosen, environments compute in float32."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import networks
from rookery.agents import encoders
from rookery.envs.base import Environment
from rookery.experiments import build, kinds
from rookery.experiments.config import EnvironmentConfig
from rookery.learners.base import Learner
from rookery.learners.off_policy import OffPolicyConfig
from rookery.networks import Precision
from tests import tiny

SIDE = 7
"""Size of the matrix that the physics multiplies by, in no product of a network."""


def with_products(environment: Environment) -> Environment:
    """The environment with a matrix product in each step and reset."""
    matrix = jnp.eye(SIDE)

    def product(reward: jax.Array) -> jax.Array:
        return reward + 0.0 * jnp.sum(matrix @ jnp.full((SIDE, SIDE), reward))

    def step(state: Any, action: jax.Array, key: jax.Array) -> Any:
        state, taken = environment.step(state, action, key)
        return state, taken._replace(reward=product(taken.reward))

    def reset(key: jax.Array) -> Any:
        state, first = environment.reset(key)
        return state, first._replace(reward=product(first.reward))

    return environment._replace(step=step, reset=reset)


def products(function: Any, *arguments: Any) -> Iterator[tuple[bool, Any, Any]]:
    """Of each matrix product: whether it belongs to the physics, its precision, and the type of its inputs."""
    waiting: list[Any] = [jax.make_jaxpr(function)(*arguments).jaxpr]
    while waiting:
        for equation in waiting.pop().eqns:
            inner = jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns"))
            waiting += [getattr(part, "jaxpr", part) for part in inner if hasattr(part, "eqns")]
            if equation.primitive.name == "dot_general":
                sides = [side.aval for side in equation.invars]
                is_physics = (SIDE, SIDE) in {side.shape[-2:] for side in sides}
                yield is_physics, equation.params["precision"], {side.dtype for side in sides}


HIGHEST = (jax.lax.Precision.HIGHEST,) * 2


TF32 = (jax.lax.Precision.HIGH,) * 2


@pytest.mark.parametrize(
    ("agent", "precision", "expected"),
    [
        *(("sac", precision, kind) for precision, kind in (("auto", None), ("float32", HIGHEST), ("tf32", TF32))),
        ("sac", "bfloat16", None),
        ("ppo", "float32", HIGHEST),
        ("ppo", "bfloat16", None),
    ],
)
def test_networks_have_the_precision_and_physics_float32(agent: str, precision: Precision, expected: Any) -> None:
    env = with_products(rookery.make("point_room", episode_length=4))
    if agent == "sac":
        config = OffPolicyConfig(num_envs=2, steps_per_generation=4, batch_size=3, warmup_steps=0, buffer_size=16)
        learner: Learner[Any, Any] = rookery.off_policy(rookery.sac(env.spec, hidden_sizes=(5,)), env, config)
    else:
        ppo = rookery.ppo(env.spec, hidden_sizes=(5,), minibatches=2)
        learner = rookery.on_policy(ppo, env, eval_episodes=2, num_envs=2, rollout_length=2, evaluate_every=1)
    program = rookery.populations.with_precision(rookery.pbt(learner, population_size=4), precision)
    state = jax.eval_shape(program.init, jax.random.key(0))
    found = list(products(program.step, state, jax.random.key(1)))
    physics = [(kind, types) for is_physics, kind, types in found if is_physics]
    assert len(physics) >= 3  # start states, training, evaluation
    assert all((kind, types) == (HIGHEST, {np.dtype("float32")}) for kind, types in physics)
    of_networks = [(kind, types) for is_physics, kind, types in found if not is_physics]
    assert {kind for kind, _ in of_networks} == {expected}
    rounds = [types == {np.dtype(jnp.bfloat16)} for _, types in of_networks]
    assert sum(rounds) >= len(rounds) / 2 if precision == "bfloat16" else not any(rounds)


def test_an_update_in_bfloat16() -> None:
    """Everything but the products is float32, and the gradient is that of float32 but for 8 bits of mantissa."""
    network = networks.mlp((17,), (64, 64), 6)
    params = jax.jit(network.init)(jax.random.key(0))
    inputs, target = jax.random.normal(jax.random.key(1), (32, 17)), jnp.ones((32, 6))

    def loss(params: Any) -> jax.Array:
        return jnp.mean((network.apply(params, inputs) - target) ** 2)

    exact = jax.jit(jax.grad(loss))(params)
    with networks.computing_in("bfloat16"):
        rounded = jax.jit(jax.grad(loss))(params)
        assert jax.eval_shape(network.apply, params, inputs).dtype == jnp.float32
    difference, size = jax.tree.map(jnp.subtract, rounded, exact), jnp.sqrt(_square(exact))
    assert {leaf.dtype for leaf in jax.tree.leaves(rounded)} == {np.dtype("float32")}
    assert 1e-4 < jnp.sqrt(_square(difference)) / size < 3e-2


def _square(tree: Any) -> jax.Array:
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def test_the_innermost_context_counts() -> None:
    network = networks.mlp((3,), (5,), 2)
    params = jax.eval_shape(network.init, jax.random.key(0))
    with networks.computing_in("bfloat16"), networks.computing_in("float32"):
        found = list(products(network.apply, params, jnp.ones(3)))
    assert [(kind, types) for _, kind, types in found] == [(HIGHEST, {np.dtype("float32")})] * 2
    program = rookery.populations.with_precision(rookery.seeds(tiny.learner()), "bfloat16")
    assert program.settings["precision"] == "bfloat16"


def test_an_encoder_and_a_recurrent_network_in_bfloat16() -> None:
    core = networks.core(3, (5,), 2, 1.0, memory_size=4)
    params = jax.eval_shape(core.init, jax.random.key(0)), jnp.zeros(4), jnp.ones(3)
    encoder = encoders.convolutional((4, 4, 1), (encoders.Convolution(2, 3, 1),), 5)
    read = jax.eval_shape(encoder.init, jax.random.key(1)), jnp.ones((1, 4, 4, 1))
    for function, arguments, count in ((core.apply, params, 2), (encoder.apply, read, 2)):
        with networks.computing_in("bfloat16"):
            found = list(products(function, *arguments))
            outputs = jax.eval_shape(function, *arguments)
        assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {np.dtype("float32")}
        assert sum(types == {np.dtype(jnp.bfloat16)} for _, _, types in found) == count  # not the recurrent unit's


def test_the_precision_of_a_run_is_that_of_its_program() -> None:
    environment = EnvironmentConfig(env="point_room", precision="bfloat16", devices=1, episode_length=3)
    kind = kinds.configure("map-elites", environment=environment, batch_size=2)
    program = build.build(kind).program
    state = jax.eval_shape(program.init, jax.random.key(0))
    types = [types for _, _, types in products(program.step, state, jax.random.key(1))]
    assert types
    assert set.union(*types) == {np.dtype(jnp.bfloat16)}
