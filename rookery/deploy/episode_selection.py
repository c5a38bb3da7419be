"""Who plays when a run is to be looked at: elites spread over the repertoire, skills, or the best members."""

import math
from typing import Any, NamedTuple

import jax
import numpy as np

from rookery import trees
from rookery.envs.base import DescriptorSpec, EnvSpec
from rookery.envs.wrappers.skills import listed
from rookery.experiments import warm_start
from rookery.experiments.kinds import AnyMePbtRun, MapElitesRun
from rookery.experiments.warm_start import Origin
from rookery.learners.base import genotype
from rookery.qd.map_elites import repertoire_of
from rookery.types import Genotype


class Cast(NamedTuple):
    """Who plays, in N episodes."""

    actors: Genotype  # [M, ...]
    rows: np.ndarray  # [N], which of the actors
    slots: np.ndarray  # [N], which skill; 0 where there are none
    told: list[
        dict[str, Any]
    ]  # [N]: `cell`, `skill` or `member`; `label`; `fitness` and `descriptor` as stored, or None


def choose(origin: Origin, spec: EnvSpec, count: int | None) -> Cast:
    """Of a repertoire the best elite, then always that whose cell is farthest from those before it; of a run with
    skills the best member, once for each skill; of a team the best one; else the best members, each once.

    Members that came after the others were judged do not play: they are copies.

    Args:
      origin: the run, at a checkpoint.
      spec: of the world that it is judged in.
      count: episodes at most, at least 1; None for everybody of whom this speaks.

    Raises:
      ValueError: the repertoire is empty.
    """
    if isinstance(origin.config, MapElitesRun | AnyMePbtRun):
        assert spec.descriptor is not None  # or there would be no repertoire
        return _elites(origin, spec.descriptor, count)
    if spec.skill is not None:
        return _skills(origin, len(listed(spec.skill)), count)
    return _members(origin, 1 if spec.team else count)


def spread(centroids: np.ndarray, occupied: np.ndarray, first: int, count: int | None) -> np.ndarray:
    """Cells that stand for all: each is the farthest from those before it, ties to the lower cell.

    Args:
      centroids: `[C, D]`, in units in which all dimensions count alike.
      occupied: `[C]` bool, which cells there are to choose from.
      first: the first of them.
      count: how many at most, at least 1; None for all.

    Returns:
      `[count]`, or as many as are occupied; all different.
    """
    wanted = int(occupied.sum()) if count is None else min(count, int(occupied.sum()))
    chosen, gaps = [first], np.where(occupied, np.inf, -np.inf)
    while len(chosen) < wanted:
        gaps = np.minimum(gaps, np.square(centroids - centroids[chosen[-1]]).sum(axis=1))
        gaps[chosen[-1]] = -np.inf
        chosen.append(int(np.argmax(gaps)))
    return np.asarray(chosen)


def _elites(origin: Origin, descriptor: DescriptorSpec, count: int | None) -> Cast:
    repertoire = repertoire_of(origin.state)
    fitnesses, occupied = np.asarray(repertoire.fitnesses), np.asarray(repertoire.occupied)
    if not occupied.any():
        raise ValueError(f"the repertoire of {origin.path} is empty; let that run find somebody first.")
    span = np.asarray(descriptor.upper) - np.asarray(descriptor.lower)
    cells = spread(np.asarray(repertoire.centroids) / span, occupied, int(fitnesses.argmax()), count)
    descriptors = np.asarray(repertoire.descriptors)
    told = [_told("cell", cell, float(fitnesses[cell]), descriptors[cell]) for cell in cells]
    return Cast(repertoire.genotypes, cells, np.zeros_like(cells), told)


def _skills(origin: Origin, skills: int, count: int | None) -> Cast:
    member, actor = warm_start.best(origin)
    slots = np.arange(skills if count is None else min(count, skills))
    told = [_told("skill", slot) | {"member": member} for slot in slots]
    return Cast(_alone(actor), np.zeros_like(slots), slots, told)


def _members(origin: Origin, count: int | None) -> Cast:
    best, actor = warm_start.best(origin)
    if best is None:  # roles that were bred apart
        return Cast(_alone(actor), np.zeros(1, int), np.zeros(1, int), [_told("member", None)])
    fitness = warm_start.standing(origin.path, origin.generation, origin.state)
    members = np.argsort(-fitness, kind="stable")[:count]
    members = members[np.isfinite(fitness[members])]
    members = members if len(members) else np.asarray([best])
    told = [_told("member", member, float(fitness[member])) for member in members]
    return Cast(jax.vmap(genotype)(origin.state.members), members, np.zeros_like(members), told)


def _alone(actor: Genotype) -> Genotype:
    return trees.stack([actor])


def _told(what: str, number: Any, fitness: float = math.nan, descriptor: np.ndarray | None = None) -> dict[str, Any]:
    return {
        what: None if number is None else int(number),
        "label": "the best of each role" if number is None else f"{what} {number}",
        "fitness": fitness if math.isfinite(fitness) else None,
        "descriptor": None if descriptor is None else descriptor.astype(float).tolist(),
    }
