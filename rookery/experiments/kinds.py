"""The kinds of run: a table of methods, combined with the tables of agents in `agents`.

`KINDS` has one frozen dataclass for each kind. The command line and `config.json` are derived from them.
"""

import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from rookery.experiments.agents import DISCOVERIES, OFF_POLICY, ON_POLICY, AgentEntry
from rookery.experiments.config import FLAG, Chosen, space_flags
from rookery.experiments.settings import (
    AgentSettings,
    AnyRun,
    CmaMaeSettings,
    DcrlMeSettings,
    DiaynSettings,
    FunctionSettings,
    IndependentRun,
    LsdSettings,
    MapElitesRun,
    MePbtRun,
    MetraSettings,
    OffPolicySettings,
    OnPolicySettings,
    PbtRun,
    PgaMeSettings,
    RecordedRun,
    RoleSettings,
    SkillSettings,
    TeamSettings,
    VariationSettings,
)
from rookery.hyperparams import Space, describe
from rookery.learners import widths
from rookery.learners.rollout import PREFIX
from rookery.populations.config import PbtConfig
from rookery.training.config import RunConfig


class Method(NamedTuple):
    """A row of `METHODS`: the kinds of run with one population method, one for each agent of a table.

    In the texts, `{agent}` is the agent's name, and `{title}`, `{short_title}`, `{source}` are those of its row.
    """

    name: str
    """Name on the command line."""
    agents: Mapping[str, AgentEntry[Any]] | None
    """The table of agents; None for a method that trains none."""
    settings: tuple[type, ...]
    """Classes of the settings: the first one's defaults take precedence, the last one's settings come first."""
    summary: str
    sources: str
    defaults: Mapping[str, Any] = {}
    """Defaults that differ from those of `settings`."""


LONG_RUN = RunConfig(generations=500, checkpoint_every=25)
"""500 short generations: as many environment steps as the shorter runs of the papers."""
BEST_FITNESS = RunConfig(best_by="best_fitness")
SELECT_BY_STEPS = PbtConfig(exploit_interval=3_000)
"""Select every 3,000 environment steps of a member: `docs/evidence/learning.md` compares 750, 1,500, 3,000, 10,000 and
30,000."""
INHERIT_BUFFER = PbtConfig(inherit_buffer=True)
"""Stored transitions contain the skills of the agent that collected them, so a child needs its parent's buffer."""

_PBT, _ME_PBT = "Jaderberg 2017 (arXiv:1711.09846)", "Pierrot 2023 (arXiv:2303.12803)"
_IPPO = "de Witt 2020 (arXiv:2011.09533)"


def _discovery(settings: type[SkillSettings]) -> tuple[Method, Method]:
    """The rows of a method of skill discovery: independent members, and Population Based Training."""
    name = settings.discovery_name
    title, source, *_ = DISCOVERIES[name]
    summaries = (
        f"Skill discovery without a reward ({title}) with {{short_title}}: independent members, one by default.",
        f"Population Based Training of {{short_title}} agents that discover skills ({title}).",
    )
    return (
        Method(
            f"{name}-{{agent}}",
            OFF_POLICY,
            (AgentSettings, settings, IndependentRun),
            summaries[0],
            f"Sources: {source}, {{source}}; with --smerl Kumar 2020\n(arXiv:2010.14484).",
        ),
        Method(
            f"pbt-{name}-{{agent}}",
            OFF_POLICY,
            (AgentSettings, settings, PbtRun),
            summaries[1],
            f"Sources: {_PBT}, {source}, {{source}}.",
            {"pbt": INHERIT_BUFFER},
        ),
    )


METHODS = (
    Method(
        "{agent}",
        OFF_POLICY,
        (AgentSettings, OffPolicySettings, IndependentRun),
        "{Title}: independent members, one by default.",
        "Source: {source}.",
        {"run": LONG_RUN},
    ),
    Method(
        "pbt-{agent}",
        OFF_POLICY,
        (AgentSettings, OffPolicySettings, PbtRun),
        "Population Based Training of {title} agents.",
        f"Sources: {_PBT}, {{source}}.",
        {"run": LONG_RUN, "pbt": SELECT_BY_STEPS},
    ),
    Method(
        "map-elites",
        None,
        (VariationSettings, FunctionSettings, MapElitesRun),
        "MAP-Elites: evolve a repertoire of policies, or of inputs of a test function, without gradients.",
        "Sources: Mouret 2015 (arXiv:1504.04909), Vassiliades 2018 (arXiv:1610.05729, arXiv:1804.03906).",
    ),
    Method(
        "cma-mae",
        None,
        (CmaMaeSettings, MapElitesRun),
        "CMA-MAE: a repertoire of small policies, or of inputs of a test function, by covariance matrix adaptation.",
        "Sources: Fontaine 2023 (arXiv:2205.10752); with --archive-learning-rate 1 CMA-ME, Fontaine 2020\n"
        "(arXiv:1912.02400).",
    ),
    Method(
        "pga-me",
        None,
        (PgaMeSettings, MapElitesRun),
        "PGA-ME: a repertoire of policies, half of which are varied by the gradient of critics.",
        "Sources: Nilsson 2021, Fujimoto 2018 (arXiv:1802.09477).",
    ),
    Method(
        "dcrl-me",
        None,
        (DcrlMeSettings, MapElitesRun),
        "DCRL-ME: a repertoire of policies, varied by the gradient of critics conditioned on descriptors.",
        "Sources: Faldor 2024 (arXiv:2401.08632), Fujimoto 2018 (arXiv:1802.09477).",
    ),
    Method(
        "me-pbt-{agent}",
        OFF_POLICY,
        (AgentSettings, MePbtRun),
        "A repertoire of diverse {short_title} agents: MAP-Elites with Population Based Training (ME-PBT).",
        f"Sources: {_ME_PBT}, {{source}}.",
        {"run": LONG_RUN},
    ),
    *_discovery(DiaynSettings),
    *_discovery(MetraSettings),
    *_discovery(LsdSettings),
    Method(
        "{agent}",
        ON_POLICY,
        (AgentSettings, OnPolicySettings, IndependentRun),
        "{Title}: independent members, one by default.",
        "Source: {source}.",
        {"run": BEST_FITNESS},
    ),
    Method(
        "i{agent}",
        ON_POLICY,
        (TeamSettings, AgentSettings, IndependentRun),
        "Independent {short_title} (I{short_title}), several agents in one environment: "
        "independent teams, one by default.",
        f"Sources: {_IPPO}, {{source}}.",
    ),
    Method(
        "pbt-{agent}",
        ON_POLICY,
        (AgentSettings, OnPolicySettings, PbtRun),
        "Population Based Training of {title} agents.",
        f"Sources: {_PBT}, {{source}}.",
        {"run": BEST_FITNESS},
    ),
    Method(
        "pbt-i{agent}",
        ON_POLICY,
        (RoleSettings, TeamSettings, AgentSettings, PbtRun),
        "Population Based Training of teams of independent {short_title} agents.",
        f"Sources: {_PBT}, {_IPPO}.",
    ),
)


def generate() -> dict[str, type[AnyRun]]:
    """The kinds of run of all methods and agents in the tables: name on the command line -> config."""
    found: dict[str, type[AnyRun]] = {}
    for method in METHODS:
        agents = {"": None} if method.agents is None else method.agents
        found |= {kind.kind: kind for kind in (_generate(method, *row) for row in agents.items())}
    return found


def _generate(method: Method, agent: str, entry: AgentEntry[Any] | None) -> type[AnyRun]:
    name = method.name.format(agent=agent)
    if _discovery_name(method):
        name = name.removesuffix("-sac")  # the agent of `diayn` and `pbt-diayn`
    fields = [(key, type(value), dataclasses.field(default=value)) for key, value in method.defaults.items()]
    constants: dict[str, Any] = {"kind": name, "agent_entry": entry, "__module__": __name__}
    texts = {}
    if entry is not None:
        texts = {"source": entry.source, "title": entry.title, "short_title": entry.short_title or entry.title}
        texts["Title"] = entry.title[:1].upper() + entry.title[1:]
        space, continuous_space = _spaces(method, entry)
        constants["default_space"] = space
        fields.append(("agent", entry.config, dataclasses.field(default=entry.config())))
        has_width = not {MePbtRun, TeamSettings} & set(method.settings) and not _discovery_name(method)
        flags = space_flags(space, continuous_space, widths.field() if has_width else None)
        fields.append(("space", flags, dataclasses.field(default_factory=dict)))
    constants["__doc__"] = f"{method.summary}\n\n{method.sources}".format(**texts)
    class_name = "".join(part.capitalize() for part in name.split("-")) + "Run"
    made = dataclasses.make_dataclass(class_name, fields, bases=method.settings, namespace=constants, frozen=True)
    return cast(type[AnyRun], made)


def _discovery_name(method: Method) -> str:
    """The method of skill discovery; "" without skills."""
    return next(filter(None, (getattr(part, "discovery_name", "") for part in method.settings)), "")


def _spaces(method: Method, entry: AgentEntry[Any]) -> tuple[Space, Space | None]:
    """The default search space, and that with continuous actions if it differs."""
    if name := _discovery_name(method):
        return DISCOVERIES[name].space(entry.space), None
    if TeamSettings in method.settings:
        return entry.team_space or entry.space, None
    return entry.space, entry.continuous_space


KINDS = generate()
"""Name on the command line -> config."""


def configure(kind: str, **settings: Any) -> AnyRun:
    """The config of a kind of run with the given settings, and the defaults of all others.

    Args:
      kind: a kind of `rookery train`, such as "pbt-sac".
      **settings: its fields: `environment`, `run`, `learner`, `agent`, `population`, `pbt`, `islands`, ...

    Raises:
      ValueError: there is no such kind, or a setting is invalid.
      TypeError: the kind has no such field.

    Example:
      >>> run = rookery.experiments.RunConfig(generations=20, run_dir="runs/mine")
      >>> config = rookery.experiments.configure("pbt-sac", population=4, run=run)
    """
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=3) or list(KINDS)
        raise ValueError(f"there is no kind of run {kind!r}; did you mean {' or '.join(near)}?")
    return KINDS[kind](**settings)


def choices(config: AnyRun) -> dict[str, Chosen]:
    """The config's choices in its search space: name of the hyper-parameter -> choice."""
    return {name.removeprefix(FLAG): choice for name, choice in config.space.items()}


def with_space(config: RecordedRun, space: Space | None) -> RecordedRun:
    """The config with the full search space filled in, so that changed defaults of a later version do not affect it."""
    return config if space is None else dataclasses.replace(config, space=as_flags(_bounds_or_values(space)))


def default_space(kind: str) -> dict[str, Chosen]:
    """The default search space of a kind of run: name -> bounds or value; {} for a kind without hyper-parameters."""
    space = KINDS[kind].default_space if kind in KINDS else None
    return {} if space is None else _bounds_or_values(space)


def _bounds_or_values(space: Space) -> dict[str, Chosen]:
    return {name: (d["low"], d["high"]) if isinstance(d, dict) else d for name, d in describe(space).items()}


def parameter_flag(name: str) -> str:
    """The flag of a hyper-parameter: `tau` -> `--space.tau`, and `env_prey_speed` of an environment's parameter ->
    `--space.env.prey-speed`."""
    return f"--{FLAG}{re.sub(f'^{PREFIX}', 'env.', name)}".replace("_", "-")


def as_flags(chosen: Mapping[str, Any]) -> dict[str, Chosen]:
    """Convert choices by name to the value of the config's `space` field, whose keys are `space.<name>`."""
    return {FLAG + name: tuple(choice) if isinstance(choice, list) else choice for name, choice in chosen.items()}
