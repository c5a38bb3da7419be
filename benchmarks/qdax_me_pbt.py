"""The parts of QDax's ME-PBT: PBT-SAC, its emitter, its evaluation, and the cells of its repertoire.

QDax is called through its public classes. The settings follow its example except for one number: as many members are
exchanged between devices as there are parents, because otherwise its code skips or repeats members.
"""

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import work
from rookery.envs import registry
from rookery.envs.suites.brax import feet as brax_feet
from rookery.types import Array, Key

DESCRIPTORS = ("own", "mended", "ours")
"""Descriptor of QDax's evaluation: unchanged; with the steps after an episode's end excluded correctly; or also with
Rookery's definition of contact (a foot is near the floor) instead of QDax's (a foot penetrates the floor), so that
QDax optimises the descriptor by which it is evaluated.
"""


class Settings(NamedTuple):
    """Settings; the defaults are those of QDax's example, with smaller networks and batches."""

    task: str = "walker2d_uni"
    pg_population: int = 10  # trained members
    ga_population: int = 30  # children of the repertoire per generation
    best_to_replace_from: float = 0.1  # the share of members that are parents
    replaced_from_best: float = 0.2  # the share replaced by children of those
    replaced_from_samples: float = 0.4  # the share replaced by elites of the repertoire
    iterations: int = 10  # per generation: a step of every environment, then the updates
    num_envs: int = 25  # per member
    updates_per_step: float = 1.0
    batch_size: int = 64
    buffer_size: int = 100_000  # rows per member
    hidden_sizes: tuple[int, ...] = (64, 64)
    cells: int = 128
    draws: int = 50_000  # samples that the centroids are fitted to
    iso_sigma: float = 0.005
    line_sigma: float = 0.05
    episode_length: int = 1000
    eval_episodes: int = 1  # with start states drawn once
    descriptor: str = "own"  # one of `DESCRIPTORS`

    @property
    def population(self) -> int:
        return self.pg_population + self.ga_population

    @property
    def steps_per_generation(self) -> int:
        """Training environment steps of all members."""
        return self.pg_population * self.num_envs * self.iterations

    @property
    def offset(self) -> float:
        """The return that contributes 0 to the QD score, by Rookery's task registry."""
        return -registry.find(self.task).qd_offset * self.episode_length


QUICK = Settings(
    pg_population=4,
    ga_population=4,
    best_to_replace_from=0.25,
    replaced_from_best=0.25,
    replaced_from_samples=0.25,
    iterations=2,
    num_envs=8,
    batch_size=16,
    buffer_size=1_000,
    hidden_sizes=(16, 16),
    cells=16,
    draws=1_000,
    episode_length=50,
)


def agent_of(settings: Settings) -> Any:
    """QDax's PBT-SAC."""
    from qdax.baselines.sac_pbt import PBTSAC, PBTSacConfig

    config = PBTSacConfig(
        batch_size=settings.batch_size,
        episode_length=settings.episode_length,
        policy_hidden_layer_size=settings.hidden_sizes,
        critic_hidden_layer_size=settings.hidden_sizes,
    )
    return PBTSAC(config, registry.find(settings.task).action_size)


def emitter_of(settings: Settings, agent: Any, environment: Any) -> Any:
    """QDax's PBT emitter; `environment` is the batch of all members' environments."""
    patch_import()
    from qdax.core.emitters.pbt_me_emitter import PBTEmitter, PBTEmitterConfig
    from qdax.core.emitters.pbt_variation_operators import sac_pbt_variation_fn

    updates: Any = settings.updates_per_step  # the field is annotated int, but QDax's examples and code use a float
    config = PBTEmitterConfig(
        buffer_size=settings.buffer_size,
        num_training_iterations=settings.iterations,
        env_batch_size=settings.num_envs,
        grad_updates_per_step=updates,
        pg_population_size_per_device=settings.pg_population,
        ga_population_size_per_device=settings.ga_population,
        num_devices=1,
        fraction_best_to_replace_from=settings.best_to_replace_from,
        fraction_to_replace_from_best=settings.replaced_from_best,
        fraction_to_replace_from_samples=settings.replaced_from_samples,
        fraction_sort_exchange=settings.best_to_replace_from,
    )
    vary: Any = partial(sac_pbt_variation_fn, iso_sigma=settings.iso_sigma, line_sigma=settings.line_sigma)
    return PBTEmitter(agent, config, environment, vary)


def patch_import() -> None:
    """Make QDax 0.5.0's emitter importable without Brax v1, of which it only imports the name of a class."""
    second = importlib.import_module("qdax.tasks.brax.v2.envs.base_env")
    sys.modules.setdefault("qdax.tasks.brax.v1.envs.base_env", second)


def scoring(settings: Settings, agent: Any, key: Key) -> Callable[[Any, Any], tuple[Any, Any, dict]]:
    """QDax's evaluation of a population, from constant start states that all members share."""
    from qdax.tasks.brax.v2 import descriptor_extractor

    environment = work.qdax_environment(settings.task, settings.eval_episodes, settings.episode_length)
    environment = with_our_contacts(environment) if settings.descriptor == "ours" else environment
    start = jax.jit(environment.reset)(key)
    extract = descriptor_extractor[settings.task] if settings.descriptor == "own" else contact_share
    evaluate = agent.get_eval_qd_fn(environment, extract)

    def score(genotypes: Any, key: Any) -> tuple[Any, Any, dict]:
        del key
        population = genotypes.steps.shape[0]
        starts = jax.tree.map(lambda leaf: jnp.repeat(leaf[None], population, axis=0), start)
        fitness, descriptor, _, _ = evaluate(genotypes, starts)
        return fitness, descriptor, {}

    return score


def contact_share(transitions: Any, ended: Array) -> Array:
    """Share of the steps before the episode's end in which each foot touches the ground, `[N, D]`.

    Args:
      transitions: QDax's transitions, `[N, T, ...]`, NaN after the end.
      ended: `[N, T]` bool.
    """
    return jnp.mean(transitions.state_desc, axis=1, where=~ended[..., None])


def with_our_contacts(environment: Any) -> Any:
    """The batched environment with Rookery's foot contacts as its state descriptor."""
    from brax.envs.base import Wrapper

    feet = brax_feet.find_feet(environment.unwrapped.sys, environment.descriptor_length)

    class Contacts(Wrapper):
        def reset(self, rng: Any) -> Any:
            return self._read(self.env.reset(rng))

        def step(self, state: Any, action: Any) -> Any:
            return self._read(self.env.step(state, action))

        def _read(self, state: Any) -> Any:
            links = state.pipeline_state.x
            heights = jax.vmap(partial(brax_feet.foot_heights, feet))(links.pos, links.rot)
            contacts = (heights < brax_feet.CONTACT_HEIGHT).astype(jnp.float32)
            return state.replace(info={**state.info, "state_descriptor": contacts})

    return Contacts(environment)


def centroids_of(settings: Settings, environment: Any, key: Key) -> Array:
    """QDax's centroidal Voronoi cells over the limits of the descriptor, `[C, D]`."""
    from qdax.core.containers.mapelites_repertoire import compute_cvt_centroids

    low, high = environment.descriptor_limits
    return compute_cvt_centroids(environment.descriptor_length, settings.draws, settings.cells, low, high, key)


def counting(emitter: Any) -> Any:
    """The emitter, with the number of NaN descriptors of the last evaluation added to its state."""
    from qdax.core.emitters.emitter import Emitter

    class Counting(Emitter):
        batch_size = emitter.batch_size

        def init(self, descriptors: Array, **more: Any) -> tuple:
            return emitter.init(descriptors=descriptors, **more), _count_invalid(descriptors)

        def emit(self, repertoire: Any, emitter_state: tuple, key: Any) -> tuple:
            return emitter.emit(repertoire, emitter_state[0], key)

        def state_update(self, emitter_state: tuple, descriptors: Array, **more: Any) -> tuple:
            after = emitter.state_update(emitter_state=emitter_state[0], descriptors=descriptors, **more)
            return after, _count_invalid(descriptors)

    return Counting()


def _count_invalid(descriptors: Array) -> Array:
    """Number of non-finite descriptors among `[B, D]`."""
    return jnp.sum(~jnp.isfinite(descriptors).all(axis=-1))
