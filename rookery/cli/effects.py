"""A check for flags that have no effect, because of the other flags."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rookery.experiments.kinds import configure
from rookery.experiments.settings import ProgramRun, RecordedRun


class _Rule(NamedTuple):
    """When settings of one part of a config have an effect."""

    part: str
    names: tuple[str, ...]
    used: Callable[[Any], bool]
    """The part of the config -> whether they have an effect."""
    needed: str
    """What they need, after "has an effect only"."""


_RULES = (
    _Rule("islands", ("migrate_every", "migrate_fraction"), lambda islands: islands.islands > 1, "with --islands"),
    _Rule(
        "pbt",
        ("perturb", "exploit_interval", "burn_in", "inherit_buffer"),
        lambda pbt: pbt.exploit != "none",
        "with another --exploit than none",
    ),
    _Rule("pbt", ("frequencies",), lambda pbt: pbt.exploit == "multi-frequency", "with --exploit multi-frequency"),
    _Rule(
        "pbt",
        ("replace_fraction", "replace_count", "best_fraction", "best_count"),
        lambda pbt: pbt.exploit == "truncation",
        "with --exploit truncation",
    ),
    _Rule("pbt", ("replace_fraction",), lambda pbt: pbt.replace_count is None, "without --replace-count"),
    _Rule("pbt", ("best_fraction",), lambda pbt: pbt.best_count is None, "without --best-count"),
    _Rule(
        "pbt",
        ("perturb_factors", "resample_probability"),
        lambda pbt: pbt.exploit != "none" and pbt.perturb == "perturb",
        "with --perturb perturb",
    ),
    _Rule("", ("identify",), lambda run: run.parameters == "shared", "with --parameters shared"),
)


def check(config: RecordedRun) -> None:
    """Check that every setting of a run that differs from the default of its kind has an effect.

    Raises:
      ValueError: one has none; the message says which setting it needs.
    """
    if isinstance(config, ProgramRun):
        return
    default = configure(config.kind)
    for rule in _RULES:
        part, usual = ((getattr(each, rule.part, None) if rule.part else each) for each in (config, default))
        changed = [name for name in rule.names if getattr(part, name, None) != getattr(usual, name, None)]
        if changed and not rule.used(part):
            raise ValueError(f"{changed[0]} has an effect only {rule.needed}; change that, or leave {changed[0]} out.")
