"""The networks that agents can be built with, by name."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from rookery import hyperparams
from rookery.hyperparams import Space
from rookery.networks.base import Network
from rookery.networks.dense import mlp
from rookery.networks.residual import check, simba, squashed_std

ConfigT = TypeVar("ConfigT")
NetworkName = Literal["mlp", "simba"]
"""A key of `NETWORKS`."""


class NetworkRow(NamedTuple):
    """A network, and the settings of agents that come with it."""

    build: Callable[..., Network]
    """Takes the sizes of the inputs, the widths, the size of the output and, as keyword, `output_scale`; see `mlp`."""
    normalized: Callable[..., Network]
    """The same with normalised hidden layers."""
    settings: Mapping[str, Any]
    """Field of an agent's config -> its value where it is None."""
    hyper: Mapping[str, float] = MappingProxyType({})
    """Hyper-parameter -> its default, where the agent's own differs; optional ones become part of all members."""
    gaussian: Callable[[Network], Network] = lambda network: network
    """Bounds the log standard deviations that a network gives after the means."""
    normalize: bool = False
    """Whether it needs normalised observations."""
    check: Callable[[Any], None] = lambda _: None
    """Raises a SettingError if a field of an agent's config does not fit the network."""


NETWORKS: Mapping[str, NetworkRow] = {
    "mlp": NetworkRow(
        mlp,
        partial(mlp, layer_norm=True),
        {"hidden_sizes": (256, 256), "target_entropy_scale": 1.0, "alpha_init": 1.0},
    ),
    "simba": NetworkRow(
        simba,
        simba,
        {
            "hidden_sizes": (128,),
            "critic_hidden_sizes": (512, 512),
            "target_entropy_scale": 0.5,
            "alpha_init": 0.01,
        },
        {"policy_lr": 1e-4, "critic_lr": 1e-4, "alpha_lr": 1e-4, "weight_decay": 1e-2},
        squashed_std,
        normalize=True,
        check=check,
    ),
}
"""Name -> network. The settings of simba are those of its authors (Lee 2024, arXiv:2410.09754, Table 3, and their
code)."""


def filled(config: ConfigT) -> ConfigT:
    """The config of an agent with the fields that are None filled in by its `network`. An agent whose only network
    gives values has the widths of critics.

    Raises:
      SettingError: a field does not fit the network.
    """
    given: Any = config
    row = NETWORKS[given.network]
    settings = {**row.settings}
    if not hasattr(given, "critic_hidden_sizes"):
        settings["hidden_sizes"] = settings.get("critic_hidden_sizes", settings["hidden_sizes"])
    missing = {name: value for name, value in settings.items() if getattr(given, name, value) is None}
    given = dataclasses.replace(given, **missing)
    row.check(given)
    return given


def space_of(space: Space, config: Any) -> Space:
    """The search space of an agent with the defaults that its `network` brings; what evolves, and between which bounds,
    stays."""
    values = NETWORKS[config.network].hyper
    for name in values:
        if space.optional and name in space.optional.fields:
            rest = hyperparams.without(space.optional, name)
            space = hyperparams.choose(space, **{name: values[name]})._replace(optional=rest)
    known = {name: value for name, value in values.items() if name in space.defaults._fields}
    return space._replace(defaults=space.defaults._replace(**known))


def policy_and_value(config: Any, sizes: tuple[int, int], output_size: int) -> tuple[Network, Network]:
    """The networks of a policy and of one critic.

    Args:
      config: of the agent, with its fields filled in.
      sizes: of the observation and of the action.
      output_size: outputs of the policy.
    """
    row, widths = NETWORKS[config.network], config.hidden_sizes
    policy = row.build(sizes[:1], widths, output_size, output_scale=config.output_scale)
    critic_widths = widths if config.critic_hidden_sizes is None else config.critic_hidden_sizes
    return policy, (row.normalized if config.layer_norm else row.build)(sizes, critic_widths, 1)
