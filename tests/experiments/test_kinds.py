"""The kinds of run: their flags and defaults, their capabilities, and an agent that is added by one row."""

import ast
import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rookery
from rookery.agents.base import Agent
from rookery.agents.sac import SPACE as SAC_SPACE
from rookery.agents.sac import SacConfig, sac
from rookery.cli.flags import flags_of
from rookery.cli.options import options_of
from rookery.envs.base import EnvSpec
from rookery.experiments import agents, kinds, settings
from rookery.experiments.agents import DISCOVERIES, AgentEntry
from rookery.experiments.config_io import from_record, to_record
from rookery.experiments.kinds import KINDS, configure, default_space, generate
from rookery.hyperparams import LogUniform
from rookery.learners import widths
from rookery.storage.csv_log import read_csv
from rookery.storage.record import SKILL_METHODS
from rookery.training.config import RunConfig
from rookery.trees import flatten_mapping
from tests.commandline import call

FLAGS = Path(__file__).with_name("flags.txt")
"""Every flag with its type and its default, and the kinds that have it."""


def flag_table() -> str:
    """The content of `FLAGS`, from the kinds of this version."""
    found: dict[str, list[str]] = {}
    for name, kind in KINDS.items():
        settings = flatten_mapping(dataclasses.asdict(kind()))
        defaults = {path.rpartition(".")[2]: default for path, default in settings.items()}
        defaults |= {f"space.{key}": choice for key, choice in default_space(name).items()}
        defaults["space.hidden_size"] = "of --hidden-sizes"
        for flag, hint in flags_of(kind).items():
            default = defaults[flag.removeprefix("--").replace("-", "_")]
            found.setdefault(f"{flag} | {hint} | {default!r}", []).append(name)
    kinds_of = {line: "all" if len(names) == len(KINDS) else " ".join(names) for line, names in found.items()}
    return "".join(f"{line} | {names}\n" for line, names in sorted(kinds_of.items()))


def test_the_flags_and_defaults_of_every_kind_are_unchanged():
    assert flag_table().splitlines() == FLAGS.read_text().splitlines()


@pytest.mark.parametrize("name", KINDS)
def test_default_spaces_are_those_of_the_flags(name: str):
    flags = typing.get_type_hints(KINDS[name]).get("space")
    names = {flag.removeprefix("space.") for flag in flags.__annotations__} if flags else set()
    assert set(default_space(name)) == names - {widths.NAME}  # which is in a space only if it is chosen


def test_every_skill_method_has_its_key_of_config_json():
    assert set(SKILL_METHODS) == set(DISCOVERIES)


@pytest.mark.parametrize("name", KINDS)
def test_capabilities_agree_with_settings(name: str, monkeypatch, tmp_path):
    config = configure(name)
    names = {field.name for field in dataclasses.fields(config)}
    assert config.kind == name
    assert config.trains_agents == ({"agent", "space", "learner", "population"} <= names)
    assert config.trains_agents == (config.learner is not None) == (config.agent_entry is not None)
    assert config.has_independent_members == ("draw_hyper" in names)
    assert config.has_repertoire == ("cells" in names) == (config.cells is not None)
    assert config.has_skills == (config.skills is not None) == (config.discovery is not None) == ("skills" in names)
    assert names & set(agents.DISCOVERIES) == ({config.discovery_name} if config.has_skills else set())
    assert config.has_team == ({"parameters", "identify"} <= names) == (config.parameters is not None)
    assert not config.has_separate_roles
    assert configure("pbt-ippo", member="agent").has_separate_roles
    if config.agent_entry is not None:
        assert type(config.agent) is config.agent_entry.config
        assert config.is_on_policy == (config.agent_entry in agents.ON_POLICY.values())
    monkeypatch.setenv("HOME", str(tmp_path))  # in which paths of a config begin
    config = configure("pbt-sac", init_from="~/a", replay_schedule=Path("~/b"), run=RunConfig(run_dir="~/ü"))
    assert (config.init_from, config.replay_schedule, config.run.run_dir) == tuple(f"{tmp_path}/{x}" for x in "abü")


def changed(config: Any, path: tuple[str, ...], value: Any) -> Any:
    """A config with another value of the setting at this path."""
    inner = changed(getattr(config, path[0]), path[1:], value) if path[1:] else value
    return dataclasses.replace(config, **{path[0]: inner})


@pytest.mark.parametrize("name", KINDS)
def test_every_count_that_int32_cannot_hold_is_an_error_that_names_it(name: str):
    counts = [option for option in options_of(KINDS[name]) if "int" in str(option.hint)]
    assert {"generations", "eval-episodes", "start-states"} <= {option.name for option in counts}
    for option in counts:
        if "tuple" not in str(option.hint):
            with pytest.raises(ValueError, match=rf"^{option.path[-1]} must be at most \d+.*, got 5000000000"):
                changed(KINDS[name](), option.path, 5_000_000_000)
        with pytest.raises(TypeError, match=option.path[-1]):
            changed(KINDS[name](), option.path, "many")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("learner.num_envs", "4", "num_envs must be a whole number, got '4'"),
        ("learner.num_envs", None, "num_envs must be a whole number, got None"),
        ("learner.batch_size", 3_000_000_000, "batch_size must be at most 2147483647"),
        ("learner.updates_per_step", float("nan"), "updates_per_step must be a finite number, got nan"),
        ("learner.normalize_observations", "yes", "normalize_observations must be true or false, got 'yes'"),
        ("learner", 5, "learner must be a table of settings, got 5"),
        ("agent.hidden_sizes", 64, "hidden_sizes must be a sequence of numbers"),
        ("agent.hidden_sizes", {"a": 1}, "hidden_sizes must be a sequence of numbers"),
        ("environment.env", 3, "env must be a text, got 3"),
        ("environment.option", [1], "each of option must be a text, got 1"),
        ("environment.exact", 1, "exact must be true or false, got 1"),
        ("population", [8], "population must be a whole number"),
        ("population", True, "population must be a whole number, got True"),
        ("run.seed", 1.5, "seed must be a whole number, got 1.5"),
        ("run.run_dir", ["x"], "run_dir must be a text"),
        ("pbt.exploit", ["none"], "exploit must be 'truncation'"),
        ("space", [1], "space must be a table of settings, got "),
        ("islands.migrate_fraction", "0.5", "migrate_fraction must be a number, got '0.5'"),
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


def test_no_code_tests_the_class_of_a_config():
    """Except for `ProgramRun`, of whose parts the library knows nothing."""
    settings_classes = {name for name in vars(settings) if name.endswith(("Run", "Settings"))} - {"ProgramRun"}
    for path in Path(rookery.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
                names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                assert not names & settings_classes, f"{path}:{node.lineno}"


# --- a user-defined agent: its file has a config, a search space and a factory; `agents` gets one row


@dataclasses.dataclass(frozen=True)
class NarrowConfig:
    """Static settings of the agent."""

    width: int = 8
    """Width of the hidden layer (at least 1)."""


NARROW_SPACE = SAC_SPACE._replace(domains={"policy_lr": LogUniform(1e-4, 1e-2)})


def narrow(spec: EnvSpec, config: NarrowConfig) -> Agent:
    """Soft actor-critic with one hidden layer and one evolving rate."""
    return sac(spec, SacConfig(hidden_sizes=(config.width,)))._replace(space=NARROW_SPACE)


ROW = AgentEntry("narrow actor-critic", "Doe 2026", NarrowConfig, narrow, NARROW_SPACE)


@pytest.fixture
def narrow_kinds(monkeypatch) -> list[str]:
    """The kinds that the row adds."""
    monkeypatch.setitem(agents.OFF_POLICY, "narrow", ROW)
    added = {name: kind for name, kind in generate().items() if name not in KINDS}
    for name, kind in added.items():
        monkeypatch.setitem(kinds.KINDS, name, kind)
    return list(added)


def test_a_row_adds_an_agent_to_every_method(narrow_kinds):
    assert narrow_kinds == [
        *("narrow", "pbt-narrow", "me-pbt-narrow", "diayn-narrow", "pbt-diayn-narrow"),
        *("metra-narrow", "pbt-metra-narrow", "lsd-narrow", "pbt-lsd-narrow"),
    ]
    for name in narrow_kinds:
        config = configure(name, agent=NarrowConfig(width=3))
        assert from_record(json.loads(json.dumps(to_record(config)))) == config
        assert {"--width", "--space.policy-lr", "--space.discount"} <= set(flags_of(KINDS[name]))
        assert default_space(name)["policy_lr"] == (1e-4, 1e-2)
    assert KINDS["pbt-narrow"].__doc__ == (
        "Population Based Training of narrow actor-critic agents.\n\n"
        "Sources: Jaderberg 2017 (arXiv:1711.09846), Doe 2026."
    )
    code, out, _ = call("train", "pbt-narrow", "--help")
    assert code == 0
    assert "Width of the hidden layer" in out


def test_a_new_agent_trains_and_is_evaluated_from_the_command_line(narrow_kinds, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    tiny = (
        "--env point_room --episode-length 8 --population 2 --generations 1 --steps-per-generation 16 --num-envs 4 "
        "--batch-size 4 --buffer-size 32 --warmup-steps 4 --eval-episodes 2 --start-states 2 --width 4 --devices 1"
    ).split()
    code, out, err = call("train", "pbt-narrow", *tiny, "--seed", "1")
    assert (code, err) == (0, "")
    assert "pbt-narrow on point_room: population 2" in out
    table = read_csv(Path("runs/pbt-narrow-point_room-1/lineage.csv"))
    assert len(np.unique(table["policy_lr"])) == 2
    assert table["critic_lr"].tolist() == [np.float32(3e-4)] * 2
    recorded = json.loads(Path("runs/pbt-narrow-point_room-1/config.json").read_text())["config"]
    assert (recorded["kind"], recorded["agent"]) == ("pbt-narrow", {"width": 4})
    assert call("evaluate", "runs/pbt-narrow-point_room-1", "--episodes", "2")[0] == 0
