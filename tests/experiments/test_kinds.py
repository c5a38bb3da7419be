"""The kinds of run: their settings and flags, their records, and their capabilities."""

import copy
import dataclasses
import importlib.metadata
import json
import typing
from pathlib import Path
from typing import Any

import pytest

from rookery.cli.app import parse
from rookery.cli.options import options_of_kind
from rookery.experiments import kinds as kinds_module
from rookery.experiments.build import build, call_method
from rookery.experiments.config_io import from_record, to_record
from rookery.experiments.kinds import KindWarning, bounds_or_values, configure, kinds, with_steps
from rookery.experiments.methods import METHODS
from rookery.experiments.wrappers import WRAPPERS
from rookery.learners import widths
from rookery.populations.base import Program
from rookery.settings import SettingError
from rookery.storage.record import SKILL_METHODS
from rookery.training.config import RunConfig
from rookery.trees import flatten_mapping

NAMES = [name for name, kind in kinds().items() if kind.method.has_task]
ALONE = ["sac", "td3", "ppo", "pqn", "dqn", "es"]
AGENTS = [*ALONE, "ippo", *(f"{name}{of}" for name in SKILL_METHODS for of in ("", "-td3"))]


def test_every_method_trains_every_agent_that_it_can():
    assert {kind.method.name for kind in kinds().values()} == {method.name for method in METHODS}
    assert {*NAMES} == {
        *AGENTS,
        *(f"pbt-{agent}" for agent in AGENTS),
        *("me-pbt-sac", "me-pbt-td3", "map-elites", "cma-mae", "pga-me", "dcrl-me"),
    }
    assert {name for name, wrapper in WRAPPERS.items() if wrapper.has_skills} == {*SKILL_METHODS}


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_one_flag_with_its_default_and_an_explanation(name: str):
    kind, usual = kinds()[name], configure(name)
    options = [*options_of_kind(kind)]
    assert len({option.flag for option in options}) == len(options)
    chosen = {**bounds_or_values(kind.agent.default_space)} if kind.agent else {}
    if kind.agent and kind.agent.default_space.optional:
        chosen |= bounds_or_values(kind.agent.default_space.optional)
    of_space = {option.path[1] for option in options if option.path[0] == "space"}
    assert of_space - {widths.NAME, "n_step"} == set(chosen), "these two belong to the learner"
    settings = flatten_mapping({**to_record(usual), "space": {}})
    assert {".".join(option.path) for option in options if option.path[0] != "space"} == settings.keys() - {"kind"}
    for option in options:
        assert option.explanation.endswith((".", ")", "]")), option.flag
        if option.path[0] != "space":
            assert option.value(usual.flat) == settings[".".join(option.path)]
            words = typing.get_args(option.hint) if typing.get_origin(option.hint) is typing.Literal else ()
            assert not words or option.value(usual.flat) in words


def test_the_help_of_an_agent_without_a_source_names_none():
    kind = kinds()["pbt-sac"]
    assert kind.agent is not None
    own, plain = kind._replace(agent=kind.agent._replace(source="")), kinds()["sac"]
    assert own.sources == "Source: Jaderberg 2017 (arXiv:1711.09846)."
    assert own._replace(method=plain.method).sources == ""


@pytest.mark.parametrize("name", NAMES)
def test_capabilities_agree_with_settings_and_a_run_is_the_same_after_a_round_trip_through_its_record(name: str):
    config = configure(name).with_run(generations=7).with_environment(option=("a=1", "b=2"))
    assert from_record(json.loads(json.dumps(to_record(config)))) == config
    kind, names = kinds()[name], set(configure(name).flat)
    assert (kind.agent is not None) == ({"agent", "space", "learner", "population"} <= names)
    assert kind.method.is_independent == ("draw_hyper" in names)
    assert kind.method.has_repertoire == ("cells" in names)
    assert kind.has_skills == ("skills" in names) == bool(names & {*SKILL_METHODS})
    assert kind.is_team == ({"parameters", "identify"} <= names)
    assert kind.is_team or "member" not in names


def test_paths_begin_in_the_home_folder_and_unknown_settings_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = configure("pbt-sac", init_from="~/a", replay_schedule=Path("~/b"), run=RunConfig(run_dir="~/ü"))
    found = (config.method.init_from, config.method.replay_schedule, config.run.run_dir)
    assert found == tuple(f"{tmp_path}/{x}" for x in "abü")
    for settings, message in (
        ({"batch_sise": 3}, "a run of kind pbt-sac has no setting batch_sise; did you mean batch_size"),
        ({"policy_lr": 3}, "no setting policy_lr; it is a hyper-parameter: space={'policy_lr': ...}"),
        ({"learning_rate": 3}, r"hyper-parameter: space={'policy_lr': ...} or space={'critic_lr': ...} or space="),
        ({"net_arch": (3,)}, r"no setting net_arch; did you mean hidden_sizes\?$"),
        ({"total_timesteps": 3}, r"it is an argument of rookery\.train: steps=\.\.\.$"),
        ({"learner": 3}, "learner must be of type OffPolicyConfig, got 3"),
        ({"method": 3}, "no setting method; "),
        ({"space": [("discount", 0.98)]}, r"space must be a dictionary, such as {'discount': 0\.98}, got \["),
    ):
        with pytest.raises(TypeError, match=message):
            configure("pbt-sac", **settings)
    with pytest.raises(TypeError, match="a run of kind map-elites has no setting space"):
        configure("map-elites", space={})
    with pytest.raises(ValueError, match="there is no kind of run 'pbt-sacc'; did you mean pbt-sac"):
        configure("pbt-sacc")


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("pbt-sac --env ant --islands 2 --population 4", {"env": "ant", "islands": 2, "population": 4}),
        ("sac --hidden-sizes 8 8 --batch-size 9 --seed 3", {"hidden_sizes": (8, 8), "batch_size": 9, "seed": 3}),
        ("sac --seeds 3", {"seeds": 3}),
        ("map-elites --grid 4 4 --hidden-sizes 8 --run-dir a", {"grid": (4, 4), "hidden_sizes": (8,), "run_dir": "a"}),
        ("sac --space.discount 0.9 --space.tau 0.1 0.2", {"space": {"discount": 0.9, "tau": (0.1, 0.2)}}),
    ],
)
def test_settings_have_the_names_of_the_flags_in_python(words: str, settings: dict[str, Any]):
    assert configure(words.partition(" ")[0], **settings) == parse(["train", *words.split()]).spec


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("learner.num_envs", "4", "num_envs must be a whole number, got '4'"),
        ("agent.hidden_sizes", 64, "hidden_sizes must be a sequence of numbers"),
        ("space", [1], "space must be a table of settings, got "),
    ],
)
def test_wrong_types_in_config_json_are_one_sentence_that_names_it(path: str, value: Any, message: str):
    record = json.loads(json.dumps(to_record(configure("pbt-sac"))))
    *parts, last = path.split(".")
    inner = record
    for part in parts:
        inner = inner[part]
    inner[last] = value
    with pytest.raises(ValueError, match=f"^config.json: {message}"):
        from_record(record)


@pytest.mark.parametrize("part", ["agent", "learner", "environment", "run", "env"])
def test_a_lost_part_of_config_json_does_not_become_the_default(part: str):
    record = to_record(configure("pbt-sac", env="point_room"))
    del (record["environment"] if part == "env" else record)[part]
    with pytest.raises(ValueError, match=rf"^config\.json: .*: (pbt-sac|environment) differs in {part}; "):
        from_record(record)


def test_a_kind_may_be_written_with_underscores_and_copied():
    assert parse(["train", "pbt_sac", "--population", "4"]).spec == configure("pbt-sac", population=4)
    assert copy.deepcopy(configure("pbt-diayn")) == configure("pbt-diayn")


def test_a_package_that_cannot_add_its_kinds_is_a_warning(monkeypatch):
    broken = importlib.metadata.EntryPoint("own", "absent_package:register", kinds_module.PLUGINS)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [broken])
    kinds_module._add_plugins.cache_clear()
    with pytest.warns(KindWarning, match="absent_package:register adds no kind of run .ModuleNotFoundError"):
        assert set(kinds()) == {*NAMES, "program"}
    assert kinds()["sac"].agent is not None


def test_what_is_wrong_with_a_method_of_another_package_is_named(monkeypatch):
    def fail(*_):
        raise KeyError("population")

    usual = kinds()["map-elites"].method
    unfrozen = dataclasses.make_dataclass("Settings", [("size", int, 7)])()
    doubled = dataclasses.make_dataclass("Settings", [("seed", float, 7.0)], frozen=True)()
    changed: dict[str, Any] = {
        "own": {"build": fail, "describe": fail},
        "other": {"settings": unfrozen},
        "double": {"settings": doubled},
        "class": {"build": lambda *_: Program},
    }
    methods = [usual._replace(name=name, **changes) for name, changes in changed.items()]
    monkeypatch.setattr(kinds_module, "METHODS", [*METHODS, *methods])
    for name in ("build", "describe"):
        with pytest.raises(
            ValueError, match=rf"^{name} of the method own raised KeyError: 'population' \(.*, line \d+"
        ):
            call_method(configure("own"), name)
    with pytest.raises(ValueError, match=r"^settings of the method other are no instance of a frozen dataclass"):
        configure("other")
    with pytest.raises(ValueError, match=r"^double has two settings named seed; give that of the method another name"):
        configure("double", seed=3)
    with pytest.raises(ValueError, match=r"^build of the method class returned an object of type type, not a Built"):
        build(configure("class"))


def test_a_package_cannot_replace_a_kind(monkeypatch):
    usual = kinds()["map-elites"]
    monkeypatch.setattr(kinds_module, "METHODS", [*METHODS, usual.method._replace()])
    text = r"two kinds of run are named map-elites; that of (rookery\S+) is used, not that of \1"
    with pytest.warns(KindWarning, match=text):
        assert kinds()["map-elites"].method is usual.method


@pytest.mark.parametrize("steps", [pytest.param(10**400, id="huge"), "many", True, 0, float("nan")])
def test_steps_are_a_number_above_0(steps: Any) -> None:
    with pytest.raises(SettingError, match=r"^steps must be "):
        with_steps(configure("sac"), configure("sac"), steps)
