"""Split an agent with many skills into one agent per skill."""

from functools import partial

import jax
import jax.numpy as jnp

from rookery import hyperparams
from rookery.agents.base import OffPolicyAgent
from rookery.agents.skills.diayn import freeze_skill
from rookery.envs.base import EnvSpec
from rookery.envs.wrappers.skills import enumerate_skills
from rookery.types import Genotype


def freeze_skills(agent: OffPolicyAgent, spec: EnvSpec, genotype: Genotype) -> Genotype:
    """Return one genotype per enumerated skill for the environment without skills, with equal actions and values.

    Args:
      agent: the agent that DIAYN wraps.
      spec: spec of the environment with skills.
      genotype: genotype of a DIAYN agent for this spec, e.g. `genotype(member)`.

    Returns:
      `[M, ...]`, in the order of `enumerate_skills(spec.skill)`; `act(sac(env.spec), take(genotypes, k), observation)`
      is the action of skill k. All genotypes have the hyper-parameters and the observation statistics of the DIAYN
      genotype.

    Raises:
      ValueError: the environment has no skills.

    Example:
      >>> env = rookery.skills(rookery.make("point_room"), num_skills=3)
      >>> sac = rookery.sac(env.spec)
      >>> learner = rookery.off_policy(rookery.diayn(sac, env.spec), env)
      >>> hyper, bank = rookery.hyperparams.defaults(learner.space), learner.start_states(jax.random.key(0))
      >>> member = learner.init(jax.random.key(1), hyper, bank)
      >>> policies = rookery.learners.freeze_skills(sac, env.spec, rookery.genotype(member))
    """
    if spec.skill is None:
        raise ValueError(f"{spec.name} has no skills to freeze; pass the spec of an environment with skills.")
    skills = jnp.asarray(enumerate_skills(spec.skill))
    params = jax.vmap(partial(freeze_skill, genotype.params, spec, encoded_size=agent.encoded_size))(skills)
    hyper = hyperparams.select(agent.space, genotype.hyper)
    rest = Genotype((), hyper, genotype.normalizer)
    repeated = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (skills.shape[0], *leaf.shape)), rest)
    return repeated._replace(params=params)
