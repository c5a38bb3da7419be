"""PB2: a Gaussian process that watches the whole population proposes the children's hyper-parameters.

Every generation of every member is one observation: then, from this fitness, with these hyper-parameters, the fitness
rose by so much. A process that forgets with time learns the rise from the rest, and each child gets the point that
promises most, given what the others are about to try.

Source: Parker-Holder 2020, "Provably Efficient Online Hyperparameter Optimization with Population-Based Bandits"
(arXiv:2002.02518). The process is that of Bogunovic 2016 (arXiv:1601.06650); the batch rule is GP-BUCB, Desautels 2014
(JMLR 15). H is the number of fields that evolve, W the rows of the history.

Deviations: the coordinates are fractions of each field's own scale (the logarithm for rates); the paper's are linear.
The root of beta = c1 log(c2 n) weighs the deviation; in the authors' code beta is c1 + max(0, log(c2 n)), and its root
weighs the variance. The history is a window of fixed length (`empty`); theirs is as long as is likeliest, from 200 rows
on. Time counts generations; theirs is scaled to [0, 1] over the window. That a member diverged is an observation too.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import tinygp

from rookery import gradients, hyperparams, trees
from rookery.hyperparams import LogUniform, Space, Uniform
from rookery.populations import base
from rookery.types import Array, Hyper, Key, Scalar

CAUTION = (0.2, 0.4)  # c1 and c2 of beta = c1 log(c2 n), the authors' choice
FIT_STEPS, FIT_RATE = 40, 0.1
CANDIDATES = 256  # points that each child chooses from, in each round
PARENTS = 8  # of them, the best are searched around
WIDTHS = (2.0**-3, 2.0**-5, 2.0**-7)  # how closely, round after round
LEAST_DISTANCE = 1e-3  # in some coordinate, from a proposal to everything else that is about to be tried


class History(NamedTuple):
    """What the last generations brought: a ring of whole generations. A row that is not valid holds 0."""

    time: Array  # [W] generation
    before: Array  # [W] fitness at its start
    point: Array  # [W, H] hyper-parameters, in the unit cube
    gain: Array  # [W] fitness at its end minus that at its start; NaN where that at its end is not finite
    valid: Array  # [W] bool


class Points(NamedTuple):
    """Inputs of the process; one that is not present is independent of everything."""

    time: Array  # [N] generation
    place: Array  # [N, 1 + H] in the unit cube: the fitness before, then the hyper-parameters
    present: Array  # [N] bool


class Data(NamedTuple):
    """What is known, or believed, of some points: their gains `[N]`, standardised."""

    points: Points
    gain: Array


class Process(NamedTuple):
    """What is fitted to the standardised gains; each `[]`."""

    variance: Any  # of the function
    length_scale: Any  # in widths of the unit cube
    epsilon: Any  # forgetting per generation
    noise: Any  # variance of an observation


RANGES = Process(LogUniform(0.05, 4.0), LogUniform(0.05, 2.0), Uniform(0.0, 0.5), LogUniform(0.01, 1.0))
"""Where each is sought. The least noise also keeps a Cholesky factor in float32 right when all points are one."""

STARTS = [Process(0.7, *others) for others in itertools.product((0.5, 0.8), (0.1, 0.6), (0.3, 0.8))]
"""Fractions of the ranges; Adam starts at the likeliest."""


class TimeVarying(tinygp.kernels.Kernel):
    """`variance exp(-|x - x'|^2 / (2 length_scale^2)) (1 - epsilon)^(|t - t'| / 2)`: Parker-Holder 2020, section 4."""

    variance: Scalar
    length_scale: Scalar
    epsilon: Scalar

    def evaluate(self, one: Points, other: Points) -> Array:
        """The covariance `[]` of two single points, 0 unless both are present."""
        distance = jnp.sum(jnp.square(one.place - other.place)) / jnp.square(self.length_scale)
        forgotten = jnp.abs(one.time - other.time) * jnp.log1p(-self.epsilon)
        value = self.variance * jnp.exp(0.5 * (forgotten - distance))
        return jnp.where(one.present & other.present, value, 0.0)


def empty(space: Space, population_size: int, rows: int = 256) -> History:
    """A history without observations: the fewest whole generations that make at least `rows` rows."""
    size = -(-rows // population_size) * population_size
    shapes = (size, size, (size, len(space.domains)), size)
    return History(*map(jnp.zeros, shapes), valid=jnp.zeros(size, bool))


def remember(history: History, space: Space, generation: Array, hyper: Hyper, before: Array, after: Array) -> History:
    """Write one generation over the oldest one.

    Args:
      generation: `[]` int32, that has just been lived, counted from 0.
      hyper: `[P]`, that it was lived with.
      before: `[P]` fitness at its start, of the state that each member then held; NaN if unknown, and then the row is
        not valid.
      after: `[P]` fitness at its end; where it is not finite, the row says that these hyper-parameters failed.
    """
    size, failed = before.shape[0], ~jnp.isfinite(after)
    time, gain = jnp.full(size, generation, jnp.float32), jnp.where(failed, jnp.nan, after - before)
    valid = jnp.isfinite(before) & (failed | jnp.isfinite(gain))
    rows = History(time, before, coordinates(space, hyper), gain, valid)
    rows = trees.where(rows.valid, rows, jax.tree.map(jnp.zeros_like, rows))
    start = generation % (history.time.shape[0] // size) * size
    return jax.tree.map(lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, start, 0), history, rows)


def propose(
    history: History, space: Space, generation: Array, hyper: Hyper, before: Array, is_child: Array, key: Key
) -> Hyper:
    """New hyper-parameters for the children, one after the other (Parker-Holder 2020, Alg. 2); survivors keep theirs.

    A child's proposal maximises `mean + sqrt(beta) deviation`, where the deviation knows the survivors' points and the
    proposals made so far; no two are the same. Without a valid row, proposals are uniform draws.

    Args:
      generation: `[]` int32, that is about to be lived: one more than the last that was remembered.
      hyper: `[P]`, already inherited.
      before: `[P]` fitness of the state that each member now holds.
      is_child: `[P]` bool.
      key: consumed; each child draws its candidates from its own.

    Returns:
      A `Hyper` of `[P]` float32, inside the bounds; fields that do not evolve are unchanged.
    """
    if not space.domains:
        return hyper
    seen = (history, generation, hyper, before, is_child, key)
    # As a branch it is compiled by itself, and so to the same bits whatever stands around it.
    return jax.lax.cond(is_child.any(), partial(_propose, space), _keep, *seen)


def _keep(history: History, generation: Array, hyper: Hyper, *_: Array) -> Hyper:
    del history, generation
    return hyper


def _propose(
    space: Space, history: History, generation: Array, hyper: Hyper, before: Array, is_child: Array, key: Key
) -> Hyper:
    data = observations(history)
    place = jnp.concatenate([context(history, before)[:, None], coordinates(space, hyper)], axis=1)
    pending = Points(jnp.full(before.shape, generation, jnp.float32), place, ~is_child)
    places = _fill(data, pending, key)
    fractions = zip(space.domains.items(), places.T[1:], strict=True)
    proposed = {name: hyperparams.clip_value(domain, domain.at(fraction)) for (name, domain), fraction in fractions}
    return trees.where(is_child, hyper._replace(**proposed), hyper)


def coordinates(space: Space, hyper: Hyper) -> Array:
    """`hyper` `[P]` as points of the unit cube `[P, H]`."""
    fractions = [domain.fraction(getattr(hyper, name)) for name, domain in space.domains.items()]
    return jnp.clip(jnp.stack(fractions, axis=1), 0.0, 1.0) if fractions else jnp.zeros((len(hyper[0]), 0))


def observations(history: History) -> Data:
    """The history as the process sees it; gains are clipped at 2 standard deviations, as in the authors' code.

    Where a generation failed, the worst of the gains stands for it, as for failed trials in Bayesian optimisation.
    """
    place = jnp.concatenate([context(history, history.before)[:, None], history.point], axis=1)
    known = history.valid & jnp.isfinite(history.gain)
    count = jnp.maximum(jnp.sum(known), 1).astype(jnp.float32)
    gain = jnp.where(known, history.gain, 0.0)
    gain = gain / jnp.maximum(jnp.max(jnp.abs(gain)), 1e-30)  # so that no square overflows
    gain = jnp.where(known, gain - jnp.sum(gain) / count, 0.0)
    deviation = jnp.sqrt(jnp.sum(jnp.square(gain)) / count)
    gain = gain / jnp.maximum(deviation, 1e-6)  # less than a millionth of the gain itself is rounding
    gain = jnp.clip(gain, -2.0, 2.0)
    # The mean of the known gains is 0, so their least is 0 or below; that of the other rows, which are 0, is no less.
    return Data(Points(history.time, place, history.valid), jnp.where(history.valid & ~known, jnp.min(gain), gain))


def context(history: History, before: Array) -> Array:
    """A fitness `[N]` on the scale of those in the history: 0 at the least and below, 1 at the greatest and above."""
    low = jnp.min(jnp.where(history.valid, history.before, jnp.inf))
    high = jnp.max(jnp.where(history.valid, history.before, -jnp.inf))
    fraction = (before - low) / jnp.maximum(high - low, 1e-30)
    return jnp.where(jnp.isfinite(fraction), jnp.clip(fraction, 0.0, 1.0), 0.0)


def gaussian_process(process: Process, points: Any) -> tinygp.GaussianProcess:
    """The prior over `Points`; one that is not present has a variance of its own, and so says nothing."""
    kernel = TimeVarying(process.variance, process.length_scale, process.epsilon)
    return tinygp.GaussianProcess(kernel, points, diag=jnp.where(points.present, process.noise, 1.0))


def posterior(process: Process, data: Data) -> tuple[Callable, Callable]:
    """Mean and variance of the function, each `[]` of one point."""
    known = gaussian_process(process, data.points).condition(data.gain).gp
    return known.mean_function, known.kernel.evaluate_diag


def fit(data: Data) -> Process:
    """The process under which the gains are likeliest: Adam on the log marginal likelihood, within `RANGES`."""
    starts = trees.stack([jax.tree.map(jnp.float32, start) for start in STARTS])
    surprise = partial(_surprise, data)
    likeliest = trees.take(starts, jnp.argmin(jax.lax.map(surprise, starts)))
    return _process(_descend(surprise, likeliest, FIT_STEPS))


def _surprise(data: Data, fractions: Process) -> Array:
    return -gaussian_process(_process(fractions), data.points).log_probability(data.gain)


def _process(fractions: Process) -> Process:
    return Process(*(domain.at(fraction) for domain, fraction in zip(RANGES, fractions, strict=True)))


def _descend(loss: Callable, start: Any, steps: int) -> Any:
    """Adam inside the unit cube, with a rate that falls to 0."""
    once = partial(_descend_once, jax.grad(loss), steps)
    return jax.lax.fori_loop(0, steps, once, gradients.start(start)).params


def _descend_once(slope: Callable, steps: int, step: Array, at: gradients.Learned) -> gradients.Learned:
    at = gradients.adam(at, slope(at.params), FIT_RATE * (1.0 - step.astype(jnp.float32) / steps))
    return at._replace(params=jax.tree.map(lambda fraction: jnp.clip(fraction, 0.0, 1.0), at.params))


def optimism(count: Array) -> Array:
    """`sqrt(beta)` after `count` observations; where beta would be negative (one or two of them), 0."""
    beta = CAUTION[0] * jnp.log(CAUTION[1] * jnp.maximum(count, 1).astype(jnp.float32))
    return jnp.sqrt(jnp.maximum(beta, 0.0))


def _fill(data: Data, pending: Points, key: Key) -> Array:
    """The places `[P, 1 + H]` of all members, with a proposal wherever one is absent."""
    process = fit(data)
    # To believe the mean of what is pending leaves the mean as it is, and lowers the deviation (GP-BUCB).
    believed = Data(pending, jax.vmap(posterior(process, data)[0])(pending))
    children = jnp.argsort(pending.present, stable=True)  # children first
    join = partial(_join, process, data, children, base.member_keys(key, children.shape[0]))
    return jax.lax.fori_loop(0, jnp.sum(~pending.present), join, believed).points.place


def _join(process: Process, data: Data, children: Array, keys: Key, index: Array, pending: Data) -> Data:
    """Add one child's proposal to what is pending."""
    member = children[index]
    mean, variance = posterior(process, jax.tree.map(lambda *parts: jnp.concatenate(parts), data, pending))
    here = trees.take(pending.points, member)._replace(present=jnp.asarray(True))
    promise = jax.vmap(partial(_promise, mean, variance, optimism(jnp.sum(data.points.present)), here))

    candidates = _search(promise, keys[member], here.place.shape[0] - 1)
    promises = promise(candidates)
    distance = jnp.max(jnp.abs(candidates[:, None] - pending.points.place[None, :, 1:]), axis=-1)
    is_apart = jnp.all((distance >= LEAST_DISTANCE) | ~pending.points.present[None], axis=1)
    # Without a valid row all promise 0: the first that is apart is a uniform draw.
    chosen = _at(here, candidates[jnp.argmax(jnp.where(is_apart, promises, -jnp.inf))])
    return jax.tree.map(lambda rows, row: rows.at[member].set(row), pending, Data(chosen, mean(chosen)))


def _search(promise: Callable, key: Key, size: int) -> Array:
    """Candidates `[N, H]` for the point that promises most: uniform draws, then closer and closer to the best of them.

    No coordinate depends on a promise but through the ranks, and all of their arithmetic is exact (widths are powers of
    2), so that rounding, which differs with the number of devices, does not change what is proposed.
    """
    first_key, *keys = jax.random.split(key, 1 + len(WIDTHS))
    candidates = jax.random.uniform(first_key, (CANDIDATES, size))
    for width, near_key in zip(WIDTHS, keys, strict=True):
        best = candidates[jax.lax.top_k(promise(candidates), PARENTS)[1]]
        steps = width * jax.random.uniform(near_key, (CANDIDATES // PARENTS, PARENTS, size), minval=-1.0, maxval=1.0)
        near = jnp.clip(best[None] + steps, 0.0, 1.0).reshape(-1, size)
        candidates = jnp.concatenate([best, near])
    return candidates


def _promise(mean: Callable, variance: Callable, optimism: Array, here: Points, coordinates: Array) -> Array:
    """The acquisition `[]` of one point `[H]` of the unit cube: an upper confidence bound on its gain."""
    point = _at(here, coordinates)
    return mean(point) + optimism * jnp.sqrt(jnp.maximum(variance(point), 1e-6))


def _at(here: Points, coordinates: Array) -> Points:
    return here._replace(place=jnp.concatenate([here.place[:1], coordinates]))
