"""PB2: a Gaussian process over the whole population proposes the children's hyper-parameters.

Every generation of every member is one observation: the time, the fitness at its start and the hyper-parameters are
the input, the gain in fitness is the output. A time-varying Gaussian process is fitted to the observations, and each
child gets the point with the highest acquisition value, given the points that the other members are about to use.

Source: Parker-Holder 2020, "Provably Efficient Online Hyperparameter Optimization with Population-Based Bandits"
(arXiv:2002.02518). The process is that of Bogunovic 2016 (arXiv:1601.06650); the batch rule is GP-BUCB, Desautels 2014
(JMLR 15). H is the number of fields that evolve, W the number of rows of the history.

Deviations: the coordinates are fractions of each field's scale (logarithmic for rates); the paper's are linear. Whole
numbers are rounded in the kernel (Garrido-Merchan 2020, arXiv:1805.03463). A `Choice` is one-hot in it, so that all
pairs of names are equally similar; PB2-Mix (Parker-Holder 2021, arXiv:2106.15883) has a bandit for categories. The
root of beta = c1 log(c2 n), as in the authors' code, weights the standard deviation; there it weights the variance. The
history is a window of fixed length (`empty`); the authors choose the length with
the highest likelihood, from 200 rows on. Time counts generations; theirs is scaled to [0, 1] over the window. The
divergence of a member is an observation too.
"""

import functools
import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from rookery import gradients, trees
from rookery.hyperparams import LogUniform, Space, Uniform
from rookery.populations import base
from rookery.types import Array, Hyper, HyperT, Key, PyTree, Scalar

if TYPE_CHECKING:
    import tinygp

BETA_COEFFICIENTS = (0.2, 0.4)  # c1 and c2 of beta = c1 log(c2 n), the authors' choice
FIT_STEPS, FIT_RATE = 40, 0.1
CANDIDATES = 256  # points per child and search round
BEST_CANDIDATES = 8  # candidates that the next search round samples around
WIDTHS = (2.0**-3, 2.0**-5, 2.0**-7)  # half-width of the sampling box around a candidate, per search round
MIN_DISTANCE = 1e-3  # Chebyshev distance from a proposal to every other pending point, as long as there is room
MOST_PENDING = 128  # points of the next generation that the deviation is conditioned on
MOST_ROWS = 256  # rows of the history in larger populations
MOST_STEPS = 64  # searches in a generation; of more children than that, several share one


class History(NamedTuple):
    """Observations of the last generations: a ring buffer of whole generations. A row that is not valid is all 0."""

    time: Array
    """`[W]` generation."""
    before: Array
    """`[W]` fitness at the start of the generation."""
    point: Array
    """`[W, H]` hyper-parameters, in the unit cube."""
    gain: Array
    """`[W]` fitness at the end of the generation minus fitness at its start; NaN if the former is not finite."""
    valid: Array
    """`[W]` bool."""


class Points(NamedTuple):
    """Inputs of the process; a point that is not present is independent of all others."""

    time: Array
    """`[N]` generation."""
    place: Array
    """`[N, 1 + F]`: the fitness before in [0, 1], then the hyper-parameters as `Domain.features`."""
    present: Array
    """`[N]` bool."""


class Data(NamedTuple):
    """Points with their standardised gains, observed or predicted."""

    points: Points
    gain: Array
    """`[N]`."""


class Process(NamedTuple):
    """Parameters of the Gaussian process that are fitted to the standardised gains; each `[]`."""

    variance: PyTree
    """Variance of the function."""
    length_scale: PyTree
    """Length scale, relative to the side of the unit cube."""
    epsilon: PyTree
    """Forgetting rate per generation."""
    noise: PyTree
    """Variance of the observation noise."""


RANGES = Process(LogUniform(0.05, 4.0), LogUniform(0.05, 2.0), Uniform(0.0, 0.5), LogUniform(0.01, 1.0))
"""Search ranges. The minimum noise also keeps the Cholesky factor valid in float32 when all points coincide."""

STARTS = [Process(0.7, *others) for others in itertools.product((0.5, 0.8), (0.1, 0.6), (0.3, 0.8))]
"""Fractions of the ranges; Adam starts at the one with the highest likelihood."""


def empty(space: Space, population_size: int, rows: int = 256) -> History:
    """A history without observations, of the smallest number of whole generations with at least `rows` rows in total.

    Args:
      space: the hyper-parameters that evolve.
      population_size: P, the rows of one generation.
      rows: minimum length of the window.
    """
    size = -(-rows // population_size) * population_size
    shapes = (size, size, (size, len(space.domains)), size)
    return History(*map(jnp.zeros, shapes), valid=jnp.zeros(size, bool))


def record(history: History, space: Space, generation: Array, hyper: Hyper, before: Array, after: Array) -> History:
    """Overwrite the oldest generation of the history with a new one.

    Args:
      history: the observations so far.
      space: the hyper-parameters that evolve.
      generation: `[]` int32, the generation just finished, counted from 0.
      hyper: `[P]`, the hyper-parameters of that generation.
      before: `[P]` fitness at its start, of the state that the member then had; NaN if unknown, which makes the row
        not valid.
      after: `[P]` fitness at its end; a value that is not finite records a failure of these hyper-parameters.

    Returns:
      The history with the new rows.
    """
    size, failed = before.shape[0], ~jnp.isfinite(after)
    time, gain = jnp.full(size, generation, jnp.float32), jnp.where(failed, jnp.nan, after - before)
    valid = jnp.isfinite(before) & (failed | jnp.isfinite(gain))
    rows = History(time, before, coordinates(space, hyper), gain, valid)
    rows = trees.where(rows.valid, rows, jax.tree.map(jnp.zeros_like, rows))
    start = generation % (history.time.shape[0] // size) * size
    return jax.tree.map(lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, start, 0), history, rows)


def propose(
    history: History, space: Space[HyperT], generation: Array, hyper: HyperT, before: Array, is_child: Array, key: Key
) -> HyperT:
    """Propose hyper-parameters for the children in sequence (Parker-Holder 2020, Alg. 2); survivors keep theirs.

    A child's proposal maximises `mean + sqrt(beta) deviation`, where the deviation is conditioned on the points of the
    survivors and on the proposals made so far; no two are equal before whole numbers are rounded: where no candidate of
    the search is apart from all points, another sample is taken, the farthest one if there is no room. Without a valid
    row in the history, proposals are uniform samples. The cost is bounded, see `bounds`.

    Args:
      history: the observations of all generations so far.
      space: the hyper-parameters that evolve, and their domains.
      generation: `[]` int32, the next generation: one more than the last recorded one.
      hyper: `[P]`, already inherited.
      before: `[P]` fitness of the state that each member now has.
      is_child: `[P]` bool.
      key: consumed; each child samples its candidates with a separate key.

    Returns:
      A `Hyper` of `[P]` float32, inside the bounds; fields that do not evolve are unchanged.
    """
    if not space.domains:
        return hyper
    operands = (history, generation, hyper, before, is_child, key)
    # A branch is compiled as a separate computation, so its bits do not depend on the surrounding program.
    return jax.lax.cond(is_child.any(), partial(_propose, space), _keep, *operands)


def _keep(history: History, generation: Array, hyper: HyperT, *_: Array) -> HyperT:
    del history, generation
    return hyper


def _propose(
    space: Space[HyperT], history: History, generation: Array, hyper: HyperT, before: Array, is_child: Array, key: Key
) -> HyperT:
    data = observations(history)
    data = data._replace(points=data.points._replace(place=_features(space, data.points.place)))
    place = jnp.concatenate([context(history, before)[:, None], coordinates(space, hyper)], axis=1)
    pending = Points(jnp.full(before.shape, generation, jnp.float32), _features(space, place), ~is_child)
    places = _propose_points(space, data, place, pending, key)
    fractions = zip(space.domains.items(), places.T[1:], strict=True)
    proposed = {name: domain.clip(domain.at(fraction)) for (name, domain), fraction in fractions}
    return trees.where(is_child, hyper._replace(**proposed), hyper)


def _features(space: Space, place: Array) -> Array:
    """Places of the unit cube `[..., 1 + H]` as the kernel has them, see `Points`."""
    domains = space.domains.values()
    if not any(domain.is_whole for domain in domains):
        return place
    parts = [domain.features(place[..., 1 + axis]) for axis, domain in enumerate(domains)]
    return jnp.concatenate([place[..., :1], *parts], axis=-1)


def coordinates(space: Space, hyper: Hyper) -> Array:
    """`hyper` `[P]` as points of the unit cube `[P, H]`."""
    fractions = [domain.fraction(getattr(hyper, name)) for name, domain in space.domains.items()]
    return (
        jnp.clip(jnp.stack(fractions, axis=1), 0.0, 1.0)
        if fractions
        else jnp.zeros((len(jax.tree.leaves(hyper)[0]), 0))
    )


def observations(history: History) -> Data:
    """The history as training data of the process; gains are clipped at 2 standard deviations, as in the authors' code.

    A failed generation is imputed with the lowest gain, as is usual for failed trials in Bayesian optimisation.
    """
    place = jnp.concatenate([context(history, history.before)[:, None], history.point], axis=1)
    known = history.valid & jnp.isfinite(history.gain)
    count = jnp.maximum(jnp.sum(known), 1).astype(jnp.float32)
    gain = jnp.where(known, history.gain, 0.0)
    gain = gain / jnp.maximum(jnp.max(jnp.abs(gain)), 1e-30)  # so that no square overflows
    gain = jnp.where(known, gain - jnp.sum(gain) / count, 0.0)
    deviation = jnp.sqrt(jnp.sum(jnp.square(gain)) / count)
    gain = gain / jnp.maximum(deviation, 1e-6)  # a deviation below a millionth of the largest gain is rounding error
    gain = jnp.clip(gain, -2.0, 2.0)
    # The known gains have mean 0, so their minimum is at most 0 and the zeros of all other rows do not change it.
    return Data(Points(history.time, place, history.valid), jnp.where(history.valid & ~known, jnp.min(gain), gain))


def context(history: History, before: Array) -> Array:
    """Scale a fitness `[N]` to the range of the history: 0 at its minimum and below, 1 at its maximum and above."""
    low = jnp.min(jnp.where(history.valid, history.before, jnp.inf))
    high = jnp.max(jnp.where(history.valid, history.before, -jnp.inf))
    fraction = (before - low) / jnp.maximum(high - low, 1e-30)
    return jnp.where(jnp.isfinite(fraction), jnp.clip(fraction, 0.0, 1.0), 0.0)


@functools.cache
def time_varying() -> "Callable[..., tinygp.kernels.Kernel]":
    """The kernel of the process; a function, so that only PB2 waits for the import of tinygp."""
    import tinygp

    class TimeVarying(tinygp.kernels.Kernel):
        """`variance exp(-|x - x'|^2 / (2 length_scale^2)) (1 - epsilon)^(|t - t'| / 2)` (Parker-Holder 2020, 4)."""

        variance: Scalar
        length_scale: Scalar
        epsilon: Scalar

        def evaluate(self, X1: PyTree, X2: PyTree) -> Array:  # noqa: N803 - tinygp's names
            """The covariance `[]` of two single `Points`; 0 unless both are present."""
            distance = jnp.sum(jnp.square(X1.place - X2.place)) / jnp.square(self.length_scale)
            forgotten = jnp.abs(X1.time - X2.time) * jnp.log1p(-self.epsilon)
            value = self.variance * jnp.exp(0.5 * (forgotten - distance))
            return jnp.where(X1.present & X2.present, value, 0.0)

    return TimeVarying


def gaussian_process(process: Process, points: PyTree) -> "tinygp.GaussianProcess":
    """The prior over `Points`; a point that is not present has variance 1 and no covariance, so it has no influence."""
    import tinygp

    kernel = time_varying()(process.variance, process.length_scale, process.epsilon)
    return tinygp.GaussianProcess(kernel, points, diag=jnp.where(points.present, process.noise, 1.0))


def posterior(process: Process, data: Data) -> tuple[Callable, Callable]:
    """The posterior mean and variance functions; each maps one point to `[]`.

    Mapped over points they are products with one matrix: XLA copies a triangular factor for each point that it solves.
    """
    prior = gaussian_process(process, data.points)
    factor: Any = prior.solver.scale_tril  # pyright: ignore[reportAttributeAccessIssue]
    whiten = jax.scipy.linalg.solve_triangular(factor, jnp.eye(len(factor)), lower=True)
    points: PyTree = data.points
    product = partial(jnp.matmul, precision="highest")
    weights = product(whiten.T, product(whiten, data.gain))

    def covariance(point: PyTree) -> Array:
        return jax.vmap(prior.kernel.evaluate, in_axes=(0, None))(points, point)

    def mean(point: PyTree) -> Array:
        return product(covariance(point), weights)

    def variance(point: PyTree) -> Array:
        return prior.kernel.evaluate(point, point) - jnp.sum(jnp.square(product(whiten, covariance(point))))

    return mean, variance


def fit(data: Data) -> Process:
    """Maximise the log marginal likelihood of the gains with Adam, within `RANGES`."""
    starts = trees.stack([jax.tree.map(jnp.float32, start) for start in STARTS])
    loss = partial(_negative_log_likelihood, data)
    likeliest = trees.take(starts, jnp.argmin(jax.lax.map(loss, starts)))
    return _process(_descend(loss, likeliest, FIT_STEPS))


def _negative_log_likelihood(data: Data, fractions: Process) -> Array:
    return -gaussian_process(_process(fractions), data.points).log_probability(data.gain)


def _process(fractions: Process) -> Process:
    return Process(*(domain.at(fraction) for domain, fraction in zip(RANGES, fractions, strict=True)))


def _descend(loss: Callable, start: PyTree, steps: int) -> PyTree:
    """Adam inside the unit cube, with a learning rate that decays linearly to 0."""
    once = partial(_descend_once, jax.grad(loss), steps)
    return jax.lax.fori_loop(0, steps, once, gradients.start(start)).params


def _descend_once(gradient: Callable, steps: int, step: Array, current: gradients.Learned) -> gradients.Learned:
    current = gradients.adam(current, gradient(current.params), FIT_RATE * (1.0 - step.astype(jnp.float32) / steps))
    return current._replace(params=jax.tree.map(lambda fraction: jnp.clip(fraction, 0.0, 1.0), current.params))


def bounds(population_size: int) -> str:
    """What the proposals of a generation compute at most, as a sentence for `--plan`."""
    size = population_size
    rows = MOST_ROWS if size > MOST_PENDING else -(-MOST_ROWS // size) * size
    pending, steps = min(size, MOST_PENDING), min(size, MOST_STEPS)
    points = rows + pending
    flops = steps * (points**3 / 3 + (2 + len(WIDTHS)) * CANDIDATES * points**2) + 2 * FIT_STEPS * rows**3
    return (
        f"PB2: at most {steps} searches in a generation, each on {rows} observations and {pending} points of the next "
        f"generation; {flops / 1e9:.2g} billion operations on each device"
    )


def optimism(count: Array) -> Array:
    """`sqrt(beta)` after `count` observations; 0 where beta would be negative (one or two observations)."""
    beta = BETA_COEFFICIENTS[0] * jnp.log(BETA_COEFFICIENTS[1] * jnp.maximum(count, 1).astype(jnp.float32))
    return jnp.sqrt(jnp.maximum(beta, 0.0))


class Proposed(NamedTuple):
    """The points of the next generation while they are proposed."""

    places: Array
    """`[P, 1 + H]`, of all members."""
    taken: Array
    """`[P]` bool, the survivors and the children that have a proposal."""
    pending: Data
    """`[M]` of these points, with their predicted gains, by which the deviation is conditioned."""


def _propose_points(space: Space, data: Data, place: Array, pending: Points, key: Key) -> Array:
    """The places `[P, 1 + H]` of all members, `place` at first: proposals for those whose point is not present."""
    size = pending.present.shape[0]
    if size > MOST_PENDING:
        data = trees.take(data, _evenly(data.gain.shape[0], min(MOST_ROWS, data.gain.shape[0])))
    process = fit(data)
    children = jnp.argsort(pending.present, stable=True)  # children first
    count = jnp.sum(~pending.present)
    points = pending
    if size > MOST_PENDING:  # survivors, evenly
        survivors = _evenly(size - count, MOST_PENDING)
        points = trees.take(pending, children[count + jnp.minimum(survivors, size - 1 - count)])
        points = points._replace(present=points.present & (jnp.diff(survivors, prepend=-1) > 0))
    # Adding pending points with their posterior mean keeps the mean and lowers the deviation (GP-BUCB).
    predicted = Data(points, jax.vmap(posterior(process, data)[0])(points))
    group = _group(count)
    add = partial(_add_proposals, space, process, data, children, base.member_keys(key, size), count)
    begin = Proposed(place, pending.present, predicted)
    return jax.lax.fori_loop(0, -(-count // jnp.maximum(group, 1)), add, begin).places


def _group(count: Array) -> Array:
    """The number of children that share a search, of `count` children."""
    return -(-count // MOST_STEPS)


def _evenly(count: Array | int, picks: int) -> Array:
    """`picks` numbers from 0 to `count` - 1, evenly, `[picks]` int32; equal ones follow each other."""
    return (jnp.arange(picks) * count) // picks


def _add_proposals(
    space: Space,
    process: Process,
    data: Data,
    children: Array,
    keys: Key,
    count: Array,
    index: Array,
    proposed: Proposed,
) -> Proposed:
    """Propose for one group of children, which share the search of the first of them."""
    group = _group(count)
    first = children[index * group]
    known = jax.tree.map(lambda *parts: jnp.concatenate(parts), data, proposed.pending)
    mean, variance = posterior(process, known)
    time = proposed.pending.points.time[0]
    point, optimism_now = partial(_point, space, time), optimism(jnp.sum(data.points.present))
    acquire = jax.vmap(partial(_acquisition, mean, variance, optimism_now, partial(point, proposed.places[first])))
    searched, uniform = _search(acquire, keys[first], len(space.domains))
    candidates = jnp.concatenate([searched, uniform])
    acquisitions = jnp.concatenate([acquire(searched), acquire(uniform)])
    was_searched = jnp.arange(len(candidates)) < len(searched)

    def propose(number: Array, proposed: Proposed) -> Proposed:
        places, taken, pending = proposed
        member = children[number]
        distance = jnp.max(jnp.abs(candidates[:, None] - places[None, :, 1:]), axis=-1)
        nearest = jnp.min(jnp.where(taken[None], distance, jnp.inf), axis=1)
        # What was searched, else any other candidate that is apart, else the one that is farthest from all points.
        # Without a valid row all acquisitions are 0: the first candidate that is apart is a uniform sample.
        level = jnp.where(nearest >= MIN_DISTANCE, 1 + was_searched.astype(jnp.int32), 0)
        value = jnp.where(jnp.max(level) > 0, acquisitions, nearest)
        best = candidates[jnp.argmax(jnp.where(level == jnp.max(level), value, -jnp.inf))]
        chosen, place = point(places[member], best), jnp.concatenate([places[member, :1], best])
        slot = member if len(taken) <= MOST_PENDING else number % MOST_PENDING
        rows = jax.tree.map(lambda all_rows, row: all_rows.at[slot].set(row), pending, Data(chosen, mean(chosen)))
        return Proposed(places.at[member].set(place), taken.at[member].set(True), rows)

    return jax.lax.fori_loop(index * group, jnp.minimum((index + 1) * group, count), propose, proposed)


def _search(acquire: Callable, key: Key, size: int) -> tuple[Array, Array]:
    """Candidates `[N, H]` for the maximum of the acquisition, and the uniform samples from which the search begins; it
    goes on in ever smaller boxes around the best ones.

    The coordinates depend on acquisition values only through their ranks, and the arithmetic on coordinates is exact
    (widths are powers of 2), so rounding, which differs with the number of devices, does not change the proposals.
    """
    first_key, *keys = jax.random.split(key, 1 + len(WIDTHS))
    candidates = uniform = jax.random.uniform(first_key, (CANDIDATES, size))
    shape = (CANDIDATES // BEST_CANDIDATES, BEST_CANDIDATES, size)
    for width, near_key in zip(WIDTHS, keys, strict=True):
        best = candidates[jax.lax.top_k(acquire(candidates), BEST_CANDIDATES)[1]]
        steps = width * jax.random.uniform(near_key, shape, minval=-1.0, maxval=1.0)
        near = jnp.clip(best[None] + steps, 0.0, 1.0).reshape(-1, size)
        candidates = jnp.concatenate([best, near])
    return candidates, uniform


def _acquisition(mean: Callable, variance: Callable, optimism: Array, point: Callable, coordinates: Array) -> Array:
    """The acquisition `[]` of one point `[H]` of the unit cube: an upper confidence bound on its gain."""
    current = point(coordinates)
    return mean(current) + optimism * jnp.sqrt(jnp.maximum(variance(current), 1e-6))


def _point(space: Space, time: Array, place: Array, coordinates: Array) -> Points:
    """The point of a member at `place` `[1 + H]` with other hyper-parameters, `coordinates` `[H]`."""
    place = jnp.concatenate([place[:1], coordinates])
    return Points(time, _features(space, place), jnp.asarray(True))
