"""An agent with many skills, taken apart into one agent for each."""

from functools import partial

import jax
import jax.numpy as jnp

from rookery.agents import diayn
from rookery.agents.base import Agent
from rookery.envs.base import EnvSpec
from rookery.envs.wrappers.skills import listed
from rookery.types import Genotype


def freeze_skills(agent: Agent, spec: EnvSpec, genotype: Genotype) -> Genotype:
    """One genotype per listed skill, for the world without skills: the same actions and the same values.

    Args:
      agent: the agent that DIAYN wraps.
      spec: of the world with skills.
      genotype: of a DIAYN agent in it, e.g. `genotype(member)`.

    Returns:
      `[M, ...]`, in the order of `listed(spec.skill)`; `act(sac(env.spec), take(genotypes, k), observation)` is what
      skill k does. All have the hyper-parameters and the observation statistics of the one they come from.

    Raises:
      ValueError: the world has no skills.
    """
    if spec.skill is None:
        raise ValueError(f"{spec.name} has no skills to take apart.")
    skills = jnp.asarray(listed(spec.skill))
    params = jax.vmap(partial(diayn.frozen, genotype.params, spec))(skills)
    hyper = diayn.inner_hyper(type(agent.space.defaults), genotype.hyper)
    rest = Genotype((), hyper, genotype.normalizer)
    repeated = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (skills.shape[0], *leaf.shape)), rest)
    return repeated._replace(params=params)
