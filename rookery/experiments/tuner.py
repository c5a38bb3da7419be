"""Population Based Training of any training loop, without JAX: `rookery.populations.Tuner`.

It is the selection, inheritance and perturbation of `populations.pbt`, for members of which only the hyper-parameters
are known here.
"""

import dataclasses
import json
from collections import namedtuple
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from rookery import hyperparams, trees
from rookery.distributed import programs
from rookery.hyperparams import Choice, Domain, LogUniform, LogWhole, OneMinusLog, Space, Uniform, Whole, describe
from rookery.learners.base import Member
from rookery.populations.base import member_keys
from rookery.populations.config import PbtConfig, check_population
from rookery.populations.pbt import PbtBindings, PbtShared, exploit, first_shared, record_fitness
from rookery.populations.sharding import ONE_DEVICE
from rookery.settings import HYPER_NAMES, SettingError, check_names, config_from, type_of, user_path
from rookery.storage.manifest import digest_of
from rookery.storage.run_dir import write_atomically
from rookery.training.config import check_seed
from rookery.types import Array

FORMAT = 1  # of the file
_DOMAINS = {kind.__name__: kind for kind in (Uniform, LogUniform, OneMinusLog, Whole, LogWhole, Choice)}


class Outside(NamedTuple):
    """What selection and inheritance need of a learner, whose members are trained elsewhere."""

    steps_per_generation: int = 1
    untrained_generations: int = 0
    resize: None = None
    rate_training: None = None


class Tuner:
    """Tunes the hyper-parameters of P training loops while they run: PBT, PB2 or MF-PBT.

    Train each member for a while with what `ask` returns, give its score to `tell`, and let member i continue from a
    copy of the parameters and the optimiser of member `parents[i]`.

    Args:
      space: name -> a domain of `rookery.hyperparams` (`LogUniform`, `Uniform`, `OneMinusLog`, `Whole`, `LogWhole`,
        `Choice`), or a constant; or the search space of an agent.
      population_size: P.
      seed: of all random numbers.
      **options: fields of `rookery.populations.PbtConfig`: `exploit="truncation"`, "tournament", "threshold",
        "multi-frequency" (MF-PBT) or "none"; `perturb="perturb"`, "resample" or "pb2"; `exploit_interval`, in calls of
        `tell`; `replace_fraction`, `smooth`, `burn_in`, `frequencies`, ...

    Raises:
      ValueError: nothing evolves, the population is too small, or an option is invalid.
      TypeError: there is no such option, or a value of the space is neither a domain nor a constant.

    Example:
      >>> space = {"rate": rookery.hyperparams.LogUniform(1e-4, 1.0), "penalty": rookery.hyperparams.Choice("l1", "l2")}
      >>> tuner = rookery.populations.Tuner(space, population_size=4)
      >>> rates = [member["rate"] for member in tuner.ask()]
      >>> parents = tuner.tell(fitness=[0.1, 0.7, 0.4, float("nan")])
      >>> parents.tolist()
      [0, 1, 2, 1]
    """

    def __init__(self, space: Mapping[str, Any] | Space, population_size: int = 8, seed: int = 0, **options: Any):
        given = {**describe(space), **space.domains} if isinstance(space, Space) else dict(space)
        given = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
        self._config = config_from(PbtConfig, None, options, ("space", "population_size", "seed"))
        check_population(self._config, population_size)
        if self._config.is_automatic or self._config.inherit_buffer:
            name = "exploit_interval" if self._config.is_automatic else "inherit_buffer"
            raise SettingError(name, None, "needs members that are trained by this library", "leave it out")
        self._given, self._seed = given, int(check_seed(seed))
        domains = {name: value for name, value in given.items() if isinstance(value, Domain)}
        for name, value in given.items():
            if not isinstance(value, Domain | str | int | float | None):
                problem = f"must be a domain, such as LogUniform(1e-4, 1.0), or a constant, got {type_of(value)}"
                raise TypeError(f"{name} {problem}.")
        if not domains:
            raise ValueError("no hyper-parameter has a domain, so that there is nothing to tune; give one.")
        check_names("hyper-parameter", given, HYPER_NAMES)
        programs.check_switches(has_infinities=False)
        kind: Any = namedtuple("Hyper", domains, rename=True)  # such as `learning-rate` and `lambda`
        own = dict(zip(kind._fields, domains.values(), strict=True))
        self._names = list(domains)
        self._space = hyperparams.space(kind(*(domain.low for domain in own.values())), own)
        learner: Any = Outside()
        bindings = PbtBindings(learner, self._space, self._config, population_size, ONE_DEVICE)
        first_key, self._key = jax.random.split(jax.random.key(self._seed))
        hyper = jax.vmap(partial(hyperparams.sample, self._space))(member_keys(first_key, population_size))
        self._state: tuple[PbtShared, Any] = first_shared(bindings), hyper
        self._tell = jax.jit(partial(_tell, bindings))

    @property
    def generation(self) -> int:
        """The number of calls of `tell`."""
        return int(self._state[0].generation)

    def ask(self) -> list[dict[str, Any]]:
        """The hyper-parameters of each member until the next `tell`: whole numbers as `int`, choices as their names."""
        columns = (np.asarray(values).tolist() for values in self._state[1])
        rows = (dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True))
        return [{name: _value(given, row.get(name)) for name, given in self._given.items()} for row in rows]

    def tell(self, fitness: Sequence[float] | ArrayLike) -> np.ndarray:
        """Select by the fitness, and perturb the hyper-parameters of the members that are replaced.

        Args:
          fitness: `[P]`, higher is better; a member whose value is masked, or not finite, has failed, and is
            replaced.

        Returns:
          `parents` `[P]`: member i continues from a copy of member `parents[i]`, of which it is one if they are equal.
          If all members have failed, each is its own parent: begin them anew. Their hyper-parameters are drawn again,
          unless `exploit` is "none".

        Raises:
          ValueError: there is not one number for each member.
        """
        # No sum over the latest ones overflows.
        given, largest = trees.unmasked(fitness, np.float64), float(np.finfo(np.float32).max) / self._config.smooth
        values = np.where(np.isfinite(given), np.clip(given, -largest, largest), given).astype(np.float32)
        if values.shape != (size := self._state[0].parents.shape):
            raise ValueError(f"tell needs the fitness {list(size)} of all members, got the shape {list(values.shape)}.")
        with jax.debug_nans(False):  # members that failed
            self._state = self._tell(*self._state, values, self._key)
        return np.array(self._state[0].parents)

    def save(self, path: str | Path) -> None:
        """Write the tuner to a small file (JSON), atomically."""
        space = {name: _described(value) for name, value in self._given.items()}
        size = len(self._state[0].parents)
        arguments = {"space": space, "population_size": size, "seed": self._seed, **dataclasses.asdict(self._config)}
        leaves = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(self._state)]
        body = {"arguments": arguments, "state": leaves}
        write_atomically(user_path(path), json.dumps({"format": FORMAT, "sha256": digest_of(body), **body}))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a tuner that `save` wrote; it continues bit for bit.

        Raises:
          OSError: the file cannot be read.
          ValueError: it is no such file, or was edited.
        """
        try:
            content = json.loads(user_path(path).read_text(encoding="utf-8-sig"))
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}")
            if digest_of({name: content[name] for name in ("arguments", "state")}) != content["sha256"]:
                raise ValueError("it was edited")
            space = {name: _read(value) for name, value in content["arguments"].pop("space").items()}
            tuner = cls(space, **content["arguments"])
            leaves, structure = jax.tree.flatten(tuner._state)
            read = zip(leaves, content["state"], strict=True)
            arrays = [np.asarray(values, leaf.dtype).reshape(leaf.shape) for leaf, values in read]
            tuner._state = jax.tree.unflatten(structure, arrays)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"{path} is no file of a Tuner ({error}); give one that save wrote.") from error
        return tuner


def _tell(bindings: PbtBindings, shared: PbtShared, hyper: Any, fitness: Array, run_key: Any) -> tuple[PbtShared, Any]:
    """A selection, as at the end of a generation of `pbt`."""
    *keys, draw_key = jax.random.split(jax.random.fold_in(run_key, shared.generation), 3)
    shared, ranked = record_fitness(bindings, shared, hyper, fitness)
    parents, is_any_known = jnp.arange(len(fitness), dtype=jnp.int32), jnp.isfinite(fitness).any()
    if bindings.config.exploit != "none":
        unknown: Any = ()  # of the members only the hyper-parameters are known
        members = Member(unknown, hyper, unknown, unknown, unknown)
        parents, members = exploit(bindings, shared, members, ranked, (keys[0], keys[1]))
        drawn = jax.vmap(partial(hyperparams.sample, bindings.space))(member_keys(draw_key, len(fitness)))
        hyper = trees.where(is_any_known, members.hyper, drawn)
        # The fitness of parameters that are gone counts no longer.
        shared = shared._replace(recent=jnp.where(is_any_known, shared.recent, jnp.nan))
    recent = trees.take(shared.recent, parents)
    return shared._replace(generation=shared.generation + 1, parents=parents, recent=recent), hyper


def _value(given: Any, value: float | None) -> Any:
    """A value as a training loop takes it."""
    if not isinstance(given, Domain) or value is None:
        return given
    if isinstance(given, Choice):
        return given.among[int(value)]
    value = min(max(value, given.low), given.high)  # float32 may round a number beyond its bounds
    return int(value) if given.is_whole else float(value)


def _described(value: Any) -> Any:
    """A domain as JSON values."""
    return {"domain": type(value).__name__, **dataclasses.asdict(value)} if isinstance(value, Domain) else value


def _read(value: Any) -> Any:
    """A domain from JSON values."""
    if not isinstance(value, dict):
        return value
    kind: Any = _DOMAINS[value["domain"]]
    return kind(*value["names"], among=value["among"]) if "names" in value else kind(value["low"], value["high"])
