"""`rookery train program FILE:build`: a user-defined program from the command line, and what goes wrong."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import factories, trees
from rookery.cli.app import parse
from rookery.deploy import evaluate
from rookery.experiments import build, warm_start
from rookery.experiments.methods import program as programs
from tests.commandline import call, printed
from tests.tiny import assert_equal

FILE = """
import os

import rookery
from tests import tiny, walks


def build(width: int = 8, population: int = 4) -> rookery.Program:
    environment = rookery.make("point_room", episode_length=10)
    agent = rookery.sac(environment.spec, rookery.agents.SacConfig(hidden_sizes=(width,)))
    return rookery.pbt(rookery.off_policy(agent, environment, tiny.CONFIG), population_size=population)


def scratch() -> rookery.Program:
    os.chdir("/")
    made = rookery.pbt(walks.learner(), population_size=4)
    return rookery.Program(made.init, made.step, made.evaluate, 4, made.steps_per_generation)


def environment():
    return rookery.make("point_room")


def agent():
    return rookery.sac(environment().spec)


def learner():
    return tiny.learner()


def scoring():
    return rookery.qd.policy_scoring(environment())


def raising(genotype, key):
    raise ValueError("no mass")  # in a run, where it is traced


def traced():
    scoring = rookery.qd.function_scoring(raising, walks.jax.random.normal, (0.0,), (1.0,))
    return rookery.map_elites(scoring, rookery.qd.grid((2,), (0.0,), (1.0,)), rookery.qd.iso_line(scoring, 4))


def nothing():
    pass


def raises():
    return 1 / 0


def swapped():
    return rookery.pbt(rookery.off_policy(environment(), agent()))
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("user") / "mine.py"
    path.write_text(FILE)
    return path


def train(file: Path, function: str, run: Path, *more: str) -> Path:
    words = ["program", f"./{file.name}:{function}", "--generations", "2", "--quiet", "--devices", "1", *more]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(file.parent)
        printed("train", *words, "--run-dir", run)
    return run


@pytest.fixture(scope="module")
def run(file: Path) -> Path:
    return train(file, "build", file.parent / "runs" / "build", "--option", "population=4", "--seed", "5")


@pytest.fixture(scope="module")
def scratch(file: Path) -> Path:
    """A run in a relative folder, whose factory changes the current one."""
    return file.parent / train(file, "scratch", Path("runs/scratch"))


@pytest.fixture(autouse=True)
def same_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path.cwd())


def test_the_factory_and_all_settings_are_recorded(run: Path, file: Path) -> None:
    record = json.loads((run / "config.json").read_text())["config"]
    assert (record["kind"], record["factory"], record["option"]) == ("program", f"{file}:build", ["population=4"])
    assert record["environment"] == {"env": "point_room", "episode_length": 10, "devices": 1}
    assert (record["agent"]["name"], record["population"], record["run"]["seed"]) == ("sac", 4, 5)
    assert {path.name for path in run.iterdir()} >= {"report.html", "curves.png", "lineage.csv"}
    assert "program pbt-sac" in (run / "report.html").read_text()


@pytest.mark.parametrize("command", [["evaluate", "--episodes", "3"], ["export"], ["report"]])
def test_commands_find_the_factory_from_another_folder(run: Path, command: list[str], monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    out = printed(command[0], run, *command[1:])
    assert "no episodes recorded" not in out


def test_a_run_resumes(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy = shutil.copytree(run, tmp_path / "copy")
    assert call("resume", str(copy), "--generations", "3", "--quiet") == (0, "", "")
    loaded = rookery.load(copy)
    assert (loaded.generation, loaded.config["run"]["generations"], loaded.config["factory"][-6:]) == (3, 3, ":build")


def test_a_run_loads_in_python(run: Path) -> None:
    loaded = rookery.load(run)
    assert loaded.policy()(jnp.zeros(2)).shape == (2,)
    assert loaded.evaluate(episodes=3)["returns"].shape == (4, 3)
    assert loaded.lineage.agent == "sac"


def test_members_start_from_its_agents(run: Path) -> None:
    words = f"--env point_room --hidden-sizes 8 --devices 1 --init-from {run}"
    config = parse(["train", "sac", *words.split()]).spec
    members = jax.jit(warm_start.start_from(config, build.build(config)).init)(jax.random.key(0)).members
    found = rookery.genotype(trees.take(members, 0)).params
    assert_equal(found, rookery.load(run).best().params)
    code, _, error = call("train", "td3", *words.split())
    assert code == 1
    assert "kind program, from which a run of kind td3 cannot start, since the agents are different" in error


def test_a_program_from_scratch_is_evaluated_and_reported(scratch: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = printed("evaluate", scratch, "--episodes", "7")
    assert "1 episode per member" in out
    assert call("compare", str(scratch))[0] == 0
    with pytest.raises(ValueError, match=r"^evaluate of the program gives no returns and no lengths of each member's"):
        evaluate._episodes({"best_member": np.asarray(0), "fitness": np.zeros(4)}, 1)


def test_a_program_without_a_learner_has_no_policies(scratch: Path) -> None:
    code, _, error = call("export", str(scratch))
    assert (code, error.count("\n")) == (1, 1)
    assert "has no learner, from which its policies could be read; build it by rookery.pbt or rookery.seeds" in error


def test_a_learner_that_is_set_gives_a_program_its_policies(run: Path, file: Path) -> None:
    made = programs.make(f"{file}:build", {"population": 4})
    with pytest.raises(ValueError, match="has no learner, from which its policies could be read"):
        rookery.load(run, made._replace(learner=None)).policy()
    policies = (loaded.policy(member=1) for loaded in (rookery.load(run, made), rookery.load(run)))
    np.testing.assert_array_equal(*(policy(jnp.zeros(2)) for policy in policies))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("FILE:raises", "mine.py:raises raised ZeroDivisionError: division by zero ("),
        ("FILE:traced", "the command ended early, since ValueError: no mass was raised (FILE, line 37)."),
        ("FILE:swapped", "takes the agent first, then the environment; got an environment as the agent (FILE,"),
        ("FILE:environment", "returned an Environment, not a rookery.Program; train in it by `rookery train pbt-sac"),
        ("FILE:agent", "returned an agent, not a rookery.Program; wrap it: rookery.pbt(rookery.off_policy(agent, env"),
        ("FILE:learner", "returned a Learner, not a rookery.Program; wrap it: rookery.pbt(learner,"),
        ("FILE:scoring", "returned a Scoring, not a rookery.Program; wrap it: rookery.map_elites(scoring, centroids)."),
        ("FILE:nothing", "returned None, not a rookery.Program; build one by rookery.pbt(learner) or rookery.Program("),
        ("FILE:build --option widht=3", "has no option widht; it has width, population."),
        ("FILE:build --devices 2 --option population=3", "a population of 3 cannot be divided evenly over 2 devices"),
        ("mine.py", "'mine.py' names no function; give the file or the module and the function, as in mine.py:build."),
        ("", "rookery train program needs FACTORY; `rookery train program --help`"),
    ],
)
def test_mistakes_are_sentences(words: str, message: str, file: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, error = call("train", "program", *words.replace("FILE", str(file)).split())
    assert code in (1, 2)
    assert message.replace("(FILE,", f"({file},") in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_place_of_what_a_function_raised_on_the_host(tmp_path: Path) -> None:
    frames = [f"{jax.__path__[0]}/_src/callback.py", f"{rookery.__path__[0]}/qd/scoring.py", f"{tmp_path}/arm.py"]
    text = "INTERNAL: CpuCallback error calling callback: Traceback (most recent call last):\n"
    text += "".join(f'  File "{name}", line {7 + i}, in score\n' for i, name in enumerate(["/bin/rookery", *frames]))
    found = factories.raised_by_user(RuntimeError(text + "KeyError: 'mass'\n"))
    assert found == f"KeyError: 'mass' was raised ({tmp_path}/arm.py, line 10)"
    ours = text[: text.index(f'  File "{tmp_path}')] + "ValueError: the scoring function must return fitnesses"
    assert factories.raised_by_user(RuntimeError(ours)) is None


def test_a_module_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking.py").write_text("import a_package_that_is_absent\n")
    monkeypatch.chdir(tmp_path)
    code, _, error = call("train", "program", "lacking:build")
    cause = f"No module named 'a_package_that_is_absent' ({tmp_path}/lacking.py, line 1)"
    assert (code, error) == (1, f"error: the program lacking:build cannot be imported: {cause}\n")


def test_a_file_that_has_moved(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    content = json.loads((copy / "config.json").read_text())
    content["config"]["factory"] = str(tmp_path / "moved.py:build")
    (copy / "config.json").write_text(json.dumps(content))
    shutil.rmtree(copy / "source")  # as runs of earlier versions have none
    message = (
        f"error: there is no file {tmp_path}/moved.py; give the path of a Python file, such as ./mine.py:build, or "
    )
    for command in ("resume", "evaluate"):
        code, _, error = call(command, str(copy))
        assert (code, error) == (1, f"{message}put the file back if a run recorded it.\n")


@pytest.mark.filterwarnings("always::rookery.running.ProgramWarning")
def test_a_program_whose_shapes_differ(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    content = json.loads((copy / "config.json").read_text())
    content["config"]["option"] = ["population=4", "width=16"]
    (copy / "config.json").write_text(json.dumps(content))
    code, _, error = call("resume", str(copy), "--generations", "3", "--quiet")
    warning, message = error.splitlines()
    assert code == 1
    assert warning.endswith("recorded: agent.hidden_sizes is [16], was [8]")
    assert "does not fit this run: .members" in message
    assert json.loads((copy / "config.json").read_text()) == content, "the record is unchanged"
