"""Settings in a file: `--config` reads them as if they were typed first, `--print-config` writes them."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import rookery
from rookery.cli.app import parse
from rookery.cli.config_file import to_toml
from rookery.cli.options import options_of_kind
from rookery.experiments.config_io import to_record
from rookery.experiments.kinds import configure, kinds
from tests.commandline import call, printed
from tests.written_runs import write as write_run

TOML = """
kind = "pbt-sac"
env = "point_room"
population = 16
hidden-sizes = [64, 32]
exact = true
updates_per_step = 2
run-dir = "-odd name"
[option]
mass = 2
light = false
[space]
discount = [0.9, 0.99]
tau = 0.01
policy-lr = "fixed"
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file of an otherwise empty folder, in which the test runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def write(text: str, name: str = "run.toml") -> str:
        Path(name).write_text(text)
        return name

    return write


def test_paths_and_variables_are_expanded_as_in_a_shell(write, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLACE", "runs")
    text = 'kind = "sac"\nrun-dir = "~/${PLACE}/$PLACE"\nenv = "~/$PLACE/mass.py:make"\n'
    text += 'option = ["cost=5$", "to=$PLACE"]\n'
    config = parse(["train", f"--config=~/{write(text)}"]).spec
    assert config.run.run_dir == f"{tmp_path}/runs/runs"
    assert config.environment.env == "~/runs/mass.py:make"  # as typed; `factories` expands it
    assert config.environment.option == ("cost=5$", "to=runs")
    assert parse(["train", "sac", "--run-dir=~/x"]).spec.run.run_dir == f"{tmp_path}/x"
    code, _, err = call("train", "--config", write('kind = "sac"\nrun-dir = "$NOWHERE/x"\n'))
    assert (code, err) == (
        2,
        "error: run.toml: the variable $NOWHERE in '$NOWHERE/x' is not set; set it, or write its value.\n",
    )


def same_as(words: str) -> Any:
    return parse(["train", *words.split()]).spec


@pytest.mark.parametrize("suffix", ["toml", "yaml", "yml"])
def test_a_file_gives_what_the_flags_give(write, suffix):
    name = write(TOML if suffix == "toml" else yaml.safe_dump(tomllib.loads(TOML), sort_keys=False), f"run.{suffix}")
    config = parse(["train", "--config", name]).spec
    flags = "--population 16 --hidden-sizes 64 32 --exact --updates-per-step 2 --option mass=2 light=0"
    space = "--space.discount 0.9 0.99 --space.tau 0.01 --space.policy-lr fixed"
    expected = parse(["train", "pbt-sac", "--env", "point_room", "--run-dir=-odd name", *flags.split(), *space.split()])
    assert config == expected.spec


def test_the_places_of_the_kind_and_of_the_file(write):
    name = write(TOML)
    config = parse(["train", "--config", name]).spec
    assert parse(["train", "pbt_sac", f"--config={name}"]).spec == config
    assert parse(["train", "--config", name, "pbt-sac"]).spec == config
    assert parse(["train", "--plan", "--config", name, "--run-dir", "sac", "--seed", "3"]).spec.run.run_dir == "sac"
    assert parse(["train", "--plan", "pbt-sac", "--config", name]).spec == config


def test_other_ways_to_write_a_setting(write):
    expected = same_as("sac --option mass=2 --space.tau 0.1")
    for text in (
        'option = ["mass=2"]\nspace.tau = 0.1',
        '\ufeffoption = "mass=2"\n"space.tau" = [0.1]',  # the mark with which some editors begin a file
        "[option]\nmass = 2\n[space]\ntau = 0.1",
    ):
        assert parse(["train", "sac", "--config", write(text)]).spec == expected, text
    expected = same_as("sac --space.tau 0.1 --space.env.prey-speed 1 4")
    for text in (
        '[space]\ntau = 0.1\n"env.prey_speed" = [1, 4]',
        "space.env.prey-speed = [1, 4]\nspace.tau = 0.1",
        "[space]\ntau = 0.1\n[space.env]\nprey_speed = [1, 4]",
    ):
        config = parse(["train", "sac", "--config", write(text)]).spec
        assert config == expected, text
        assert config.space == {"tau": 0.1, "env_prey_speed": (1.0, 4.0)}
    typed = same_as(f"sac --space.env.prey-speed evolve --config {write(text)}").space
    assert typed == {"tau": 0.1, "env_prey_speed": "evolve"}
    text = "space.policy_lr: 1e-4\nspace:\n  tau: 1e-2\nbest-by:\ndevices: null\n"
    config = parse(["train", "sac", "--config", write(text, "run.yaml")]).spec
    assert config == same_as("sac --space.policy-lr 1e-4 --space.tau 0.01"), "YAML reads 1e-4 as text"
    config = parse(["train", "ppo", "--config", write("normalize-observations = false\nbest-by = 'None'")]).spec
    assert (config.learner.normalize_observations, config.run.best_by) == (False, None)
    assert parse(["train", "sac", "--config", write("", "empty.yaml")]).spec == configure("sac")
    assert parse(["train", "sac", "--config", write("plan = true\nconnect-timeout = 9")]).plan


TYPED = [  # settings of a file, words beside them, the words that say the same
    ("population = 16\nexact = true\nseed = 3", "--population=4 --no-exact", "--population 4 --seed 3"),
    ("exact = true", "--exact --no-exact --population 3 --population 4", "--population 4"),
    ("hidden-sizes = [64, 64]", "--hidden_sizes 8", "--hidden-sizes 8"),
    ("[option]\nmass = 2\nlength = 3", "--option mass=1", "--option mass=1"),
    ("[space]\ntau = [0.1, 0.2]\ndiscount = 0.5", "--space.tau fixed", "--space.tau fixed --space.discount 0.5"),
    ("seeds = 4", "", "--seeds 4"),
    ("population = 4", "--seeds 2", "--population 2"),
    ("seeds = 4", "--population 2", "--population 2"),
]


@pytest.mark.parametrize(("text", "typed", "expected"), TYPED)
def test_a_typed_flag_replaces_all_values_of_the_file(write, text, typed, expected):
    name = write(text)
    assert (
        same_as(f"sac --config {name} {typed}") == same_as(f"sac {typed} --config={name}") == same_as(f"sac {expected}")
    )


def test_a_user_defined_program(write):
    text = 'kind = "program"\nfactory = "./mine.py:build"\nseed = 3\n[option]\nwidth = 64'
    config = parse(["train", "--config", write(text), "--generations", "2"]).spec
    assert config == same_as("program ./mine.py:build --option width=64 --seed 3 --generations 2")
    typed = parse(["train", "program", "./other.py:build", "--config", "run.toml"]).spec
    assert typed == same_as("program ./other.py:build --option width=64 --seed 3")
    assert parse(["train", "--config", write(to_toml(config, config))]).spec == config


def test_defaults_of_another_run_are_taken_by_a_file_too(write):
    write_run(Path("first"), to_record(same_as("map-elites --env arm --dimensions 3 --grid 4 4")))
    name = write('init-from = "first"\nbatch-size = 16')
    config = same_as(f"map-elites --config {name}")
    assert config == same_as("map-elites --init-from first --batch-size 16")
    assert (config.environment.env, config.method.dimensions) == ("arm", 3)
    out = printed("train", "map-elites", "--config", name, "--dimensions", "None", "--print-config")
    assert 'dimensions = "None"' in out, "the default is that of the other run"
    assert same_as(f"--config {write(out)}") == same_as(
        "map-elites --init-from first --batch-size 16 --dimensions None"
    )


ERRORS = [
    ("population = 3", "sac --config absent.toml", "absent.toml cannot be read: No such file"),
    ("population = 3", "sac --config run.json", "must be a file that ends in .toml, .yaml or .yml, got run.json."),
    ("a = 1\nb = = 1", "sac --config run.toml", "run.toml is not valid TOML: Invalid value (at line 2, column 5)."),
    ("a: 1\nb: [1", "sac --config run.yaml", "run.yaml is not valid YAML: while parsing a flow sequence"),
    ("seed: 1\npopulation: 1\nseed: 2", "sac --config run.yaml", "seed is given twice (at line 3)."),
    ("seed: 2026-13-45", "sac --config run.yaml", "run.yaml is not valid YAML: month must be in 1..12"),
    ("a: &a {b: *a}", "sac --config run.yaml", "run.yaml is not valid YAML: maximum recursion depth exceeded"),
    pytest.param(f"a = {'9' * 5000}", "sac --config run.toml", "not valid TOML: Exceeds the limit", id="digits"),
    pytest.param(f"a = {'[' * 5000}", "sac --config run.toml", "not valid TOML: maximum recursion", id="nested"),
    ("- 1", "sac --config run.yaml", "it must have lines such as `population: 16`"),
    ("!!python/name:x", "sac --config run.yaml", "run.yaml is not valid YAML: could not determine a constructor"),
    ("kind = 'sac'", "td3 --config run.toml", "run.toml is for sac, but td3 was typed; leave one of the two out."),
    ("seed = 1", "--config run.toml", 'run.toml has no kind; add one, such as kind = "pbt-sac", or type it after'),
    ("kind = 'pbt-sca'", "--config run.toml", "run.toml: there is no kind of run 'pbt-sca'; did you mean pbt-sac"),
    ("seed = 1", "--config run.toml pbt-sca", "there is no kind of run 'pbt-sca'; did you mean pbt-sac"),
    ("kind = 'sac'", "--config run.toml --hidden-sizes 64 x", "--hidden-sizes must be whole numbers, got 64 x"),
    ("population = 3", "sac --config run.toml --populaton 3", "rookery train sac has no flag --populaton; did you"),
    ("seed = 1", "sac --config", "--config must be a path, got nothing."),
    ("populaton = 3", "sac --config run.toml", "run.toml: rookery train sac has no setting populaton; did"),
    ("space.tua = 3", "sac --config run.toml", "run.toml: rookery train sac has no setting space.tua; did you"),
    ("config = 'a'", "sac --config run.toml", "run.toml: config is no setting of a file"),
    ("seeds = 3", "pbt-sac --config run.toml", "train pbt-sac has no setting seeds; it is one of sac, td3, ppo"),
    ("seeds = 3\npopulation = 2", "sac --config run.toml", "population is given twice, as seeds too;"),
    ("[agent]\nhidden-sizes = [3]", "sac --config run.toml", "has no setting agent.hidden-sizes; did you mean"),
    ("no-overwrite = true", "sac --config run.toml", "has no setting no-overwrite; did you mean overwrite?"),
    ("option = {a = [1]}", "sac --config run.toml", "run.toml: option a must be a number or a word, got [1]."),
    ("run-dir: yes", "sac --config run.yaml", "run.yaml: run-dir must be a word, got True."),
    ("population = 'x'", "sac --config run.toml", "run.toml: population must be a whole number, got x."),
    ("population = [1, 2]", "sac --config run.toml", "run.toml: population must be a whole number, got [1, 2]."),
    ("population:", "sac --config run.yaml", "run.yaml: population must be a whole number, got None."),
    ("run-dir = ''", "sac --config run.toml", "run.toml: run-dir must be a word, got nothing."),
    ("space.tau = [1, 2, 3]", "sac --config run.toml", "space.tau must be 2 numbers or a number or fixed, got"),
    ("space.tau = [2, 1]", "sac --config run.toml --env point_room", "run.toml: space.tau has an empty interval"),
    ("env = 'point_rom'", "sac --config run.toml", "run.toml: there is no task 'point_rom'; did you mean"),
    ("population = 0", "pbt-sac --env point_room --config run.toml", "run.toml: population must be at least 1, got"),
    ("num-envs = 7", "sac --config run.toml", "--steps-per-generation must be a multiple of num-envs (7), got"),
    ("population = 2", "sac --config run.toml --num-envs 7", "error: --steps-per-generation must be a multiple"),
    ("seed = 1", "sac --config run.toml --config run.toml", "--config is given 2 times; put all"),
    ("init-from = 'nowhere'", "sac --config run.toml", "run.toml: init-from cannot be used"),
]


@pytest.mark.parametrize(("text", "words", "expected"), ERRORS)
def test_an_error_in_a_file_is_one_sentence(write, text, words, expected):
    write(text, "run.yaml" if "run.yaml" in words else "run.toml")
    before = sorted(Path().iterdir())
    returned, out, err = call("train", *words.split())
    assert (returned, out) == (2, "")
    assert err.startswith("error: ")
    assert expected in err
    assert "Traceback" not in err
    assert sorted(Path().iterdir()) == before


# Each agent and each method: the others join settings of these.
JOINED = {name for name in kinds() if name.endswith("-td3") or name.startswith("pbt-")} - {"pbt-sac", "pbt-ippo"}


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind not in {"program", *JOINED}])
def test_printed_settings_give_the_same_config(write, kind):
    space = next((option.flag for option in options_of_kind(kinds()[kind]) if option.flag.startswith("--space.")), None)
    chosen = [space, "0.25", "0.5", "--space.env.some_weight", "-1", "1", "--space.env.b", "evolve"] if space else []
    words = ["--env", 'a "b" \\ c\n', "--option", "mass=2", "b=c", "--backend", "mjx", "--exact", "--quiet", *chosen]
    out = printed("train", kind, *words, "--print-config")
    settings = tomllib.loads(out)
    assert settings["kind"] == kind
    config = parse(["train", kind, *words]).spec
    assert parse(["train", "--config", write(out)]).spec == config
    written = settings | {f"space.{name}": value for name, value in settings.get("space", {}).items()}
    left_out = [option for option in options_of_kind(kinds()[kind]) if option.name not in written]
    usual = configure(kind).flat
    assert all(option.value(config.flat) is option.value(usual) is None for option in left_out)
    assert all(re.search(rf"(?m)^# .*{option.name}", out) for option in left_out)


def test_printed_settings_are_the_whole_output_and_need_no_device(write):
    command = [sys.executable, "-c", "from rookery.cli import main; main()", "train", "pbt-sac", "--print-config"]
    environment = {**os.environ, "PYTHONPATH": str(Path(rookery.__file__).parents[1])}
    environment["JAX_PLATFORMS"] = "absent"  # initialising JAX's devices would fail
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == call("train", "pbt-sac", "--print-config")[1]
    assert not list(Path().iterdir())
    assert parse(["train", "--config", write(ended.stdout)]).spec == configure("pbt-sac")


def test_the_example_is_valid():
    example = Path(__file__).parents[2] / "examples" / "pbt_sac.toml"
    config = parse(["train", "--config", str(example)]).spec
    assert config.kind.name == "pbt-sac"
    assert (config.environment.env, config.space["tau"]) == ("point_maze", 0.01)
