"""Settings records: each declared range and type is checked where the record is made, from Python and as a flag."""

import dataclasses
import importlib
import math
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import jax
import pytest

import rookery
from rookery.cli.app import _parse, read_line
from rookery.cli.commands import COMMANDS
from rookery.experiments.kinds import kinds
from rookery.qd.centroids import cvt
from rookery.settings import LARGEST_COUNT, SettingError, Within, _checked_fields, user_path
from tests import tiny

RANGES = {
    "above 0": "actor_lr alpha_init critic_lr initial_dual initial_sigma length_scale output_scale "
    "perturb_factors policy_lr reward_scaling",
    "at least 0": "anneal_updates burn_in checkpoint_seconds exploit_interval exploration_updates island iso_sigma "
    "league_power line_sigma member noise_clip policy_noise process_id rollouts skill smerl_margin "
    "threshold_abs threshold_std warmup_steps",
    "at least 1": "actor_epochs batch_size best_count buffer_size cells checkpoint_every critic_epochs "
    "critic_hidden_sizes critic_steps cvt_samples devices dimensions directions discriminator_hidden_sizes emitters "
    "episode_length episodes epochs eval_episodes evaluate_every frame_stack frequencies fresh ga_population "
    "generations goals gradient_batch_size grid hidden_sizes islands keep league_every league_size memory_size "
    "migrate_every minibatches novelty_neighbours num_envs num_processes patience phi_hidden_sizes policy_delay "
    "policy_gradient_steps population rating_opponents replace_count rollout_length round_patience "
    "rounds_until start_states steps steps_per_generation target_period",
    "at least 2": "num_skills",
    "in (0, 1)": "variation_share",
    "in (0, 1e+06]": "connect_timeout",
    "in [1, 1000000]": "resamples",
    "in [1, 100000]": "smooth",
    "in [1, 10000]": "quantiles",
    "in [2, 100]": "critics",
    "in [1, 1e+06]": "lost_after",
    "in (0, 1]": "smerl_fraction tau",
    "in (0, 7.38906]": "initial_std",
    "in [0, 1]": "archive_learning_rate best_fraction discount exploration_share league_share migrate_fraction "
    "replace_fraction resample_probability sample_fraction",
    "in [0, 4294967295]": "seed",
    "in [0, 65535]": "port",
}
"""All declared ranges, by the names of the settings that have them."""


def records() -> list[type]:
    """The dataclasses of the package that have ranges or check their fields, but for the documented classes."""
    modules = [importlib.import_module(found.name) for found in pkgutil.walk_packages(rookery.__path__, "rookery.")]
    values = dict.fromkeys(value for module in modules for value in vars(module).values() if isinstance(value, type))
    checking = {module.__name__ for module in modules if "check_fields" in vars(module)}
    return [
        record
        for record in values
        if dataclasses.is_dataclass(record) and not record.__module__.startswith("rookery.compat")
        if {base.__module__ for base in record.__mro__} & checking
        or any(within for _, _, within, *_ in _checked_fields(record).values())
    ]


def outside(kind: type, within: Within | None) -> list[Any]:
    """Values of a number that are none of the range, and values of other types."""
    low, high = (within.low, within.high) if within else (-math.inf, math.inf)
    if kind not in (int, float):
        return {None: ["absent", 3.5], bool: ["yes", 1, 0.0], str: [3, b"a", ["x"]]}[kind]
    found: list[Any] = ["many", b"3.", True, [3]]
    found += [low if within and low in within.excluded else low - 1] * math.isfinite(low)
    found += [high if within and high in within.excluded else high * 2 + 1] * math.isfinite(high)
    if kind is float:
        return [*found, math.nan, math.inf, 1e39, *[1e-39] * bool(within and 0 in within.excluded)]
    return [*found, 1.5, LARGEST_COUNT + 1 if high == math.inf else high * 2]


def test_the_ranges_of_all_settings():
    found = defaultdict(set)
    for record in records():
        for name, (_, _, within, *_) in _checked_fields(record).items():
            if within is not None:
                found[str(within)].add(name)
    assert dict(found) == {within: set(names.split()) for within, names in RANGES.items()}


def values_and_fields() -> Iterator[tuple[type, str, Any, Any]]:
    """Each record that can be made without arguments, its checked fields, an invalid value of each, and what of this
    value the error has: one item of a tuple, or all."""
    for record in records():
        if any(field.default is field.default_factory for field in dataclasses.fields(record)):
            continue  # a command, the values of which are checked after parsing
        for name, (hint, words, within, _, _) in _checked_fields(record).items():
            is_tuple = get_origin(hint) is tuple
            kind = get_args(hint)[0] if is_tuple else hint
            length = len(get_args(hint)) if is_tuple and get_args(hint)[-1] is not ... else 1
            for value in outside(kind, within):
                if value not in words:
                    yield record, name, (value,) * length if is_tuple else value, value
            if is_tuple:
                yield from ((record, name, value, value) for value in (8, "8", {8: 8}))
            if length > 1:
                yield from ((record, name, value, value) for value in ((0.5,) * (length - 1), (0.5,) * (length + 1)))


def test_a_value_outside_of_the_declared_range_or_type_is_an_error_that_has_the_field_and_the_value():
    fields = set()
    for record, name, value, shown in values_and_fields():
        with pytest.raises(SettingError, match=rf"^{name} must ") as caught:
            record(**{name: value})
        assert caught.value.field == name
        assert repr(caught.value.value) == repr(shown)
        fields.add(name)
    assert len(fields) > 80


def test_an_invalid_value_of_a_flag_is_an_error_with_the_flag_and_the_value():
    done = set()
    lines = [read_line(["train", name, *["a.py:make"] * (name == "program")]) for name in kinds()]
    lines += [read_line([name, "."]) for name in (*COMMANDS, "resume")]
    for line in lines:
        for option in line.parser.options:
            if option.flag in done or option.within is None or not option.flag.startswith("--"):
                continue
            done.add(option.flag)
            low, high = option.within.low, option.within.high
            for number in [low - 1, *[high * 2 + 1] * math.isfinite(high)]:
                value = f"{number:.10g}"
                with pytest.raises(SettingError) as caught:
                    _parse(line._replace(words=[*line.words, option.flag, value]))
                assert re.match(rf"{option.flag} must .*, got {value}(\.0)?\.$", line.text(caught.value))
    assert {*" ".join(RANGES.values()).split()} - {flag[2:].replace("-", "_") for flag in done} == {"island"}


def test_a_path_with_a_null_character_is_named():
    with pytest.raises(ValueError, match=r"^'runs\\x00' has a null character, which the name of no file has; change"):
        user_path("runs\0")


def test_counts_that_functions_take_are_those_of_int32():
    env, learner, many = rookery.make("point_room"), tiny.learner(), 3 * 10**9
    arm = rookery.qd.named_scoring(rookery.envs.function("arm", 4))
    for name, call in {
        "num_skills": lambda: rookery.skills(env, many),
        "episode_length": lambda: rookery.envs.limit_episode(env, many),
        "frame_stack": lambda: rookery.envs.stack_frames(env, many),
        "the size of 'arm'": lambda: rookery.envs.function("arm", many),
        "cells": lambda: rookery.qd.grid((70_000, 70_000), (0.0, 0.0), (1.0, 1.0)),
        "num_samples": lambda: cvt(jax.random.key(0), 8, (0.0,), (1.0,), many),
        "batch_size": lambda: rookery.qd.iso_line(arm, many),
        "population_size": lambda: rookery.seeds(learner, population_size=many),
        "generations": lambda: rookery.learners.train(learner, jax.random.key(0), generations=many),
    }.items():
        with pytest.raises(SettingError, match=rf"^{name} must .*got (3|49)0+\.$"):
            call()
