"""Selection of the policies whose episodes are recorded: elites spread over the repertoire, skills, or best members."""

import math
from typing import Any, NamedTuple, SupportsInt

import jax
import numpy as np

from rookery import trees
from rookery.envs.base import DescriptorSpec, EnvSpec
from rookery.envs.wrappers.skills import enumerate_skills
from rookery.experiments import warm_start
from rookery.experiments.warm_start import RestoredRun
from rookery.learners.base import genotype
from rookery.qd.map_elites import repertoire_of
from rookery.types import Genotype


class Selection(NamedTuple):
    """Policies for N episodes, taken from M genotypes."""

    actors: Genotype
    """Genotypes `[M, ...]`."""
    rows: np.ndarray
    """`[N]`, index of each episode's genotype in `actors`."""
    slots: np.ndarray
    """`[N]`, index of each episode's skill; 0 without skills."""
    descriptions: list[dict[str, Any]]
    """`[N]`: `cell`, `skill` or `member`; `label`; `fitness` and `descriptor` as stored, or None."""


def select(origin: RestoredRun, spec: EnvSpec, count: int | None) -> Selection:
    """Select the policies of a run whose episodes are recorded.

    From a repertoire: the best elite, then repeatedly the elite whose cell is farthest from the cells already chosen.
    From a run with skills: the best member, once per skill. From a run of teams: the best team. Otherwise: the best
    members, once each. Members that replaced others after the last evaluation are excluded, since they are copies.

    `count` is the largest number of episodes, at least 1; None for all elites, skills or members. The best comes first.

    Raises:
      ValueError: the repertoire is empty.
    """
    if origin.built.has_repertoire:
        assert spec.descriptor is not None  # or there would be no repertoire
        return _elites(origin, spec.descriptor, count)
    if spec.skill is not None:
        return _skills(origin, len(enumerate_skills(spec.skill)), count)
    return _members(origin, 1 if spec.team else count)


def spread(centroids: np.ndarray, occupied: np.ndarray, first: int, count: int | None) -> np.ndarray:
    """Choose cells by farthest-point sampling: each is farthest from those chosen before; ties go to the lower cell.

    `centroids` `[C, D]` are scaled so that all dimensions have equal weight, and `occupied` `[C]` are the cells to
    choose from. Returns `[count]` distinct cells, or fewer where fewer are occupied; all of these for None.
    """
    wanted = int(occupied.sum()) if count is None else min(count, int(occupied.sum()))
    chosen, gaps = [first], np.where(occupied, np.inf, -np.inf)
    while len(chosen) < wanted:
        gaps = np.minimum(gaps, np.square(centroids - centroids[chosen[-1]]).sum(axis=1))
        gaps[chosen[-1]] = -np.inf
        chosen.append(int(np.argmax(gaps)))
    return np.asarray(chosen)


def _elites(origin: RestoredRun, descriptor: DescriptorSpec, count: int | None) -> Selection:
    repertoire = repertoire_of(origin.state)
    fitnesses, occupied = np.asarray(repertoire.fitnesses), np.asarray(repertoire.occupied)
    if not occupied.any():
        raise ValueError(f"the repertoire of {origin.path} is empty; continue that run until it has an elite.")
    span = np.asarray(descriptor.upper) - np.asarray(descriptor.lower)
    cells = spread(np.asarray(repertoire.centroids) / span, occupied, int(fitnesses.argmax()), count)
    descriptors = np.asarray(repertoire.descriptors)
    descriptions = [_describe("cell", cell, float(fitnesses[cell]), descriptors[cell]) for cell in cells]
    return Selection(repertoire.genotypes, cells, np.zeros_like(cells), descriptions)


def _skills(origin: RestoredRun, skills: int, count: int | None) -> Selection:
    member, actor = warm_start.best_genotype(origin)
    slots = np.arange(skills if count is None else min(count, skills))
    descriptions = [_describe("skill", slot) | {"member": member} for slot in slots]
    return Selection(trees.stack([actor]), np.zeros_like(slots), slots, descriptions)


def _members(origin: RestoredRun, count: int | None) -> Selection:
    best, actor = warm_start.best_genotype(origin)
    if best is None:  # roles that evolve separately
        return Selection(trees.stack([actor]), np.zeros(1, int), np.zeros(1, int), [_describe("member", None)])
    fitness, standing = warm_start.current_fitness(origin), warm_start.current_standing(origin)
    members = np.argsort(-standing, kind="stable")[:count]
    members = members[np.isfinite(standing[members])]
    members = members if len(members) else np.asarray([best])
    descriptions = [_describe("member", member, float(fitness[member])) for member in members]
    return Selection(jax.vmap(genotype)(origin.state.members), members, np.zeros_like(members), descriptions)


def _describe(
    kind: str, index: SupportsInt | None, fitness: float = math.nan, descriptor: np.ndarray | None = None
) -> dict[str, Any]:
    return {
        kind: None if index is None else int(index),
        "label": "the best of each role" if index is None else f"{kind} {index}",
        "fitness": fitness if math.isfinite(fitness) else None,
        "descriptor": None if descriptor is None else descriptor.astype(float).tolist(),
    }
