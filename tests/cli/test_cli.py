"""The command line: the files that it writes, its output, its help and its error messages."""

import errno
import gc
import io
import itertools
import json
import os
import re
import select
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

import rookery
import rookery.cli.app
from rookery.cli.app import parse
from rookery.envs import registry
from rookery.envs.wrappers.skills import SkillsConfig
from rookery.experiments import build
from rookery.experiments.config_io import from_record, to_record
from rookery.experiments.kinds import configure, with_space
from rookery.report.figures import curves
from rookery.storage.checkpoint import Checkpointer
from rookery.storage.csv_log import read_csv
from rookery.storage.events import read_journal
from rookery.storage.run_dir import RunFolder
from tests import short_runs, written_runs
from tests.commandline import call, printed
from tests.deploy.untrained_runs import AGENT, ENVIRONMENT, LEARNER, save_run, unchanged

ARM = "--env arm --dimensions 3 --batch-size 8 --grid 4 4".split()
TRAIN_ARM = ["train", "map-elites", *ARM, *"--generations 1 --run-dir".split()]
TINY = (
    "--episode-length 10 --population 2 --steps-per-generation 20 --num-envs 2 --batch-size 4 --hidden-sizes 4 "
    "--buffer-size 32 --warmup-steps 4 --eval-episodes 2 --start-states 2"
)


@pytest.fixture
def rookery_command(monkeypatch, tmp_path):
    """Runs a command in an empty folder; returns its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return call


def test_a_schedule_is_replayed_by_one_new_agent(rookery_command, tmp_path):
    """Everything but the population and the seed comes from the run, unless it is given."""
    choices = "--space.policy-lr 1e-5 1e-2 --space.discount fixed --space.tau 0.01 --space.env.x-weight -1 1"
    flags = f"--env point_goal --objective approach --generations 3 --devices 1 {choices} {TINY}"
    built = build.build(parse(["train", "pbt-td3", *flags.split()]).spec)
    assert built.spec is not None
    record = to_record(with_space(built.spec, built.space))
    space = json.loads(json.dumps(record["space"]))
    assert (space["policy_lr"], space["discount"], space["tau"]) == ([1e-5, 1e-2], 0.99, 0.01)
    assert space["noise_clip"] == [0.0, 1.0], "the defaults are recorded too"
    assert (space["env_x_weight"], "env_progress_weight" in space) == ([-1.0, 1.0], False)
    tried = {name: (0.5, 0.25, 0.125, 0.5, 0.25, 0.125) for name in space}
    members = {name: written_runs.MEMBERS[name] for name in ("generation", "member", "parent", "fitness")} | tried
    written_runs.write(tmp_path / "original_run", record, written_runs.METRICS | {"env_steps": (40, 80, 120)}, members)
    schedule = rookery.experiments.lineage("original_run").schedule()
    assert schedule.values["policy_lr"].tolist() == [0.5, 0.125, 0.25]

    out = printed("train", "pbt-td3", "--replay-schedule", "original_run", "--seed", "7")
    assert "td3 on point_goal: population 1" in out
    replayed = rookery.experiments.lineage("runs/replay-td3-point_goal-7")
    assert "env_x_weight" in replayed.hyper
    for name, values in schedule.values.items():
        assert replayed.hyper[name][:, 0].tolist() == values.tolist()

    (tmp_path / "original_run").rename(tmp_path / "moved")  # the replay's own folder is complete
    code, _, err = rookery_command("resume", "runs/replay-td3-point_goal-7", "--steps", "61")  # 3.05 generations
    assert (code, err) == (0, "")
    longer = rookery.experiments.lineage("runs/replay-td3-point_goal-7")
    assert longer.hyper["policy_lr"][3, 0] == schedule.values["policy_lr"][-1]

    without_effect = "--space.tau 0.1 --exploit none".split()
    code, _, err = rookery_command("train", "pbt-td3", "--replay-schedule=moved", *without_effect)
    assert (code, "--space.tau has no effect, as --exploit, since a replayed schedule" in err) == (2, True)
    code, _, err = rookery_command("train", "sac", "--replay-schedule", "moved", "--env", "point_room")
    assert (code, "of a td3 agent and cannot be replayed by sac" in err) == (1, True)


def test_train_and_evaluate_a_repertoire(rookery_command, tmp_path):
    flags = ["train", "map-elites", *ARM, "--generations"]
    out = printed(*flags, "3")
    assert "map-elites on arm: 16 cells, 8 genotypes a generation" in out
    run = tmp_path / "runs/map-elites-arm-0"
    files_written = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    files = {"config.json", "metrics.csv", "repertoire.csv", "cells.csv", "journal.jsonl", "checkpoints", "events"}
    assert files_written == {*files, "curves.png", "repertoire.png", "report.html"}, "no genotype is a member"
    for picture in ("curves.png", "repertoire.png"):
        assert (run / picture).read_bytes().startswith(b"\x89PNG")
    assert len((run / "repertoire.csv").read_text().splitlines()) == 1 + 16
    code, out, err = rookery_command(*flags, "3")
    assert (code, out, "already contains a run" in err, "--overwrite" in err) == (1, "", True, True)

    before = (run / "metrics.csv").read_text()
    out = printed("evaluate", run, "--episodes", "2")
    assert "generation 3" in out
    assert (run / "metrics.csv").read_text() == before
    coverage = [line for line in out.splitlines() if "coverage" in line]
    stored, corrected = re.findall(r"\d+\.?\d*", coverage[0])[:2]
    assert stored == corrected, "the arm is deterministic"
    code, _, err = rookery_command("resume", str(run), "--steps", "100")
    assert (code, "--steps is for kinds whose members train a known number of steps" in err) == (2, True)
    assert rookery_command("resume", str(run), "--generations", "4", "--quiet") == (0, "", "")
    assert len(read_csv(run / "metrics.csv")["generation"]) == 4
    assert rookery_command(*flags, "2", "--overwrite", "--quiet") == (0, "", "")
    assert len(read_csv(run / "metrics.csv")["generation"]) == 2

    written = json.loads((run / "config.json").read_text())
    written["config"]["cells"]["colour"] = "blue"
    (run / "config.json").write_text(json.dumps(written))
    code, _, err = rookery_command("resume", str(run))
    assert (code, "config.json: an incompatible version" in err, "colour" in err) == (1, True, True)


def test_evaluate_skills(rookery_command, tmp_path):
    parts = {"environment": ENVIRONMENT, "learner": LEARNER, "agent": AGENT, "skills": SkillsConfig(3)}
    config = configure("pbt-metra", population=2, phi_hidden_sizes=(4,), **parts)
    run = save_run(config, tmp_path / "run", (0.0, 1.0), unchanged)
    out = printed("evaluate", run, "--episodes", "4", "--goals", "5")
    assert "2 episodes per skill" in out
    assert "distance in phi" in out
    assert re.search(r"coverage +\d+ cells of 0.1 x 0.1, which the states of 6 episodes of member 1 lie in", out)
    assert "5 goals, member 1" in out
    assert re.search(r"left at the end +│ +[\d.]+ +│ +[\d.]+ +│ +[\d.]+", out)
    assert (run / "skills.png").read_bytes().startswith(b"\x89PNG")
    assert len((run / "skills.csv").read_text().splitlines()) == 1 + 6 * 7
    code, _, err = rookery_command("train", "diayn", "--init-from", str(run))
    assert code == 1
    assert "is a run of kind pbt-metra, from which a run of kind diayn cannot start, since their skills are" in err

    (run / "skills.png").unlink()
    (run / "skills.png").mkdir()
    code, out, err = rookery_command("evaluate", str(run), "--episodes", "4")
    assert (code, err.count("\n")) == (1, 1)
    assert "skills.png cannot be written (Is a directory)" in err
    assert "which the states of 6 episodes of member 1 lie in" in out


def test_train_and_evaluate_a_team(rookery_command, tmp_path):
    flags = short_runs.KINDS["ippo"].replace("--quiet", "")  # whose compiled programs it shares
    flags += "--generations 3 --checkpoint-every 5 --best-by return/prey --draw-hyper"
    out = printed("train", "ippo", *flags.split())
    assert "ippo on pursuit_continuous: population 2 of teams, independent parameters" in out
    assert re.search(r"generation 3 of 3 .* predator -?\d.* prey -?\d", out)
    assert re.search(r"actor_lr .* \d", out), "the summary names the hyper-parameters"
    run = tmp_path / "runs/ippo-pursuit_continuous-0"
    metrics = read_csv(run / "metrics.csv")
    assert {"return/prey", "truncated/predator", "final_reward/prey", "critic_loss/prey"} <= set(metrics)
    assert metrics["env_steps"].tolist() == [2 * 2 * 6 * generation for generation in (1, 2, 3)]
    assert len(set(read_csv(run / "lineage.csv")["actor_lr"])) == 2
    best = int(metrics["return/prey"].argmax()) + 1
    assert {path.name for path in (run / "checkpoints").glob("*.json")} >= {f"generation_{best:08d}.json"}

    out = printed("evaluate", run, "--episodes", "3", "--checkpoint", "best")
    assert f"generation {best}" in out
    assert "3 episodes per agent" in out
    assert re.search(r"prey +│? .*0 % .*100 %|prey .*%", out)
    code, _, err = rookery_command("evaluate", str(run), "--checkpoint", "77")
    assert (code, "The checkpoint of generation 77 cannot be used" in err) == (1, True)


class Gone(io.TextIOWrapper):
    """A terminal that is gone."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("names", "stream"),
    [
        ("out", lambda: Gone(io.BytesIO())),
        ("err", partial(open, "/dev/full", "w")),
        ("out err", partial(open, "/dev/full", "w")),
    ],
)
def test_a_stream_that_cannot_be_written_does_not_end_the_run(rookery_command, monkeypatch, tmp_path, names, stream):
    """It is said once on the stream that is left, and in the journal; the exit code says so too."""

    def draw_curves(run_dir: Path) -> Path:
        raise ValueError("there is something to write to standard error")

    monkeypatch.setattr(curves, "draw_curves", draw_curves)
    code, out, err = rookery_command(*TRAIN_ARM, "run", **{name: stream() for name in names.split()})
    assert code == 1
    assert Checkpointer(tmp_path / "run/checkpoints", read_only=True).latest() == 1
    assert (tmp_path / "run/report.html").exists()
    lines = [line for line in (out + err).splitlines() if "cannot be written" in line]
    assert len(lines) == (names != "out err")
    warned = [event["message"] for event in read_journal(RunFolder(tmp_path / "run")) if event["event"] == "warned"]
    assert [message for message in warned if "cannot be written" in message] or names == "err"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_characters_that_a_terminal_lacks_are_escaped(rookery_command, tmp_path, encoding):
    folder, out = "é→[0]*?" + os.fsdecode(b"\xff"), io.TextIOWrapper(io.BytesIO(), encoding)
    code, _, err = rookery_command(*TRAIN_ARM, folder, out=out)
    assert (code, err) == (0, "")
    out.seek(0)
    text = out.read()
    assert ascii(folder).strip("'") in ascii(text).replace("\\\\", "\\")
    assert Checkpointer(tmp_path / folder / "checkpoints", read_only=True).latest() == 1
    code, _, _ = rookery_command("evaluate", folder, "--episodes", "1", out=out)
    assert code == 0


def test_a_switch_needs_no_value():
    agents = [parse(["train", "sac", *flags]).spec.agent for flags in ([], ["--fix-alpha"])]
    assert [agent.fix_alpha for agent in agents] == [False, True]
    for words, chosen in (
        ("", None),
        ("--normalize-observations", True),
        ("--no-normalize-observations", False),
        ("--normalize_observations --seeds 2", True),
        ("--normalize-observations False", False),
        ("--normalize-observations=False", False),
    ):
        for kind in ("ppo", "ippo"):
            assert parse(["train", kind, *words.split()]).spec.learner.normalize_observations is chosen, words


REFUSED = [
    ("trian", 2, "there is no command 'trian'; did you mean train?"),
    ("train sca", 2, "there is no kind of run 'sca'; did you mean sac?"),
    ("train", 2, "rookery train needs a kind of run, such as pbt-sac;"),
    ("", 2, "rookery needs one of train, resume,"),
    ("-x", 2, "rookery has no flag -x;"),
    ("train --env sac pbt-sac", 2, "rookery train needs a kind of run before --env, such as pbt-sac;"),
    ("replay_island absent 0", 1, "absent is not a run directory"),
    ("evaluate", 2, "rookery evaluate needs RUN"),
    ("evaluate x y", 2, "'y' is one word too many for rookery evaluate"),
    ("evaluate --episods 3 x", 2, "rookery evaluate has no flag --episods; did you mean --episodes?"),
    ("train sac --space.x-weight 3", 2, "A parameter of the task is --space.env.NAME."),
    ("train sac --nope 3", 2, "rookery train sac has no flag --nope;"),
    ("train sac --num_env=3", 2, "has no flag --num_env; did you mean --num-envs"),
    ("train sac --lr 3", 2, "has no flag --lr; did you mean --space.policy-lr or --space.critic-lr or"),
    ("train sac --total-timesteps 3", 2, "has no flag --total-timesteps; did you mean --steps?"),
    ("train cma-mae --iso-sigma 3", 2, "has no flag --iso-sigma; it is one of map-elites, pga-me, dcrl-me and others."),
    ("train sac --gamma 0.9", 2, "has no flag --gamma; did you mean --space.discount?"),
    ("train sac --emitters 3", 2, "rookery train sac has no flag --emitters; it is one of cma-mae."),
    ("train sac --pop 3", 2, "has no flag --pop; did you mean --population?"),
    ("train sac --hidden-sizes 8,8", 2, "--hidden-sizes must be whole numbers, got 8,8; separate them by spaces."),
    ("train sac --population", 2, "--population must be a whole number, got nothing."),
    ("train sac --population 1 2", 2, "'2' after --population is one word too many"),
    ("train sac --steps-per-generation 101", 2, "--num-envs (25), got 101; use 100 or 125."),
    ("train sac --space.policy-lr fixd", 2, "got fixd; did you mean fixed?"),
    ("train sac --env point_goal --space.env.x-wait 1", 2, "--space.env.x-wait: there is no parameter of point_goal"),
    ("train sac --env point_room --space.env.x-weight 1", 2, "--space.env.x-weight has no effect, since point_room"),
    ("train sac --env point_goal --space.env.x_weight=-11", 2, "--space.env.x-weight must lie in [-10, inf), got -11."),
    ("train sac --env point_goal --space.env.x-weight 1 2 3", 2, "--space.env.x-weight needs two numbers as bounds"),
    ("train sac --space.env.x-weight --seed 1", 2, "--space.env.x-weight must be 2 numbers or a number or fixed or"),
    ("train sac --env point_goal --space.env.x-weight nan", 2, "--space.env.x-weight must be 2 numbers or a number"),
    ("train map-elites --space.env.x-weight 1", 2, "rookery train map-elites has no flag --space.env.x-weight;"),
    ("train pbt-ippo --opponents league", 2, "--opponents needs a separate population for each role, got 'league'"),
    ("train pbt-ippo --member agent --league-every 3", 2, "--league-every has an effect only with --opponents league"),
    ("train pbt-ippo --env pursuit_discrete --member agent --space.env.prey-speed 1 2", 2, "prey-speed belongs to the"),
    ("train pbt-sac --exploit tournamnt", 2, "or none, got tournamnt; did you mean tournament?"),
    ("train pbt-sac --perturb-factors 1", 2, "--perturb-factors must be 2 numbers, got 1."),
    ("train pga-me --tau 1e-99", 2, "--tau must be a number above 0 in float32, got 1e-99; give at least 1.2e-38."),
    ("train sac --steps 0.5", 2, "--steps must be at least 1, got 0.5."),
    pytest.param(f"train sac --seeds {'9' * 5000}", 2, "--seeds must be a whole number, got 9999", id="digits"),
    ("train sac --env point_room --devices 1000", 2, "--devices cannot be used: 1000 devices were requested, but"),
    ("train sac --env point_room --option foo", 2, "--option must be name=value"),
    ("train sac --init-from /no/{seed}", 2, "--init-from cannot be used: /no/{seed} is not a run directory"),
    ("train sac --replay-schedule {{env}", 2, "/{{env} is not a run directory"),
    ("train map-elites --dimensions 3 --env {seed}:x", 2, "but {seed}:x is an environment, got 3; leave"),
    ("train dqn --generations 2147483647", 2, "--generations is too large, since --exploration-updates would be"),
    ("train pqn --evaluate-every 2147483647", 2, "--generations is too large, since --anneal-updates would be"),
    ("train es --backend bullet", 2, "--backend is no engine of Brax's hopper, got 'bullet'; use spring or"),
    ("train pbt-sac --env hoper", 2, "did you mean hopper"),
    ("train pbt-sac --env point_room --population 3 --devices 2", 1, "cannot be divided evenly over 2 devices"),
    (
        "train pbt-sac --population 4 --best-count 2 --replace-count 3",
        2,
        "--replace-count replaces 3 members, which",
    ),
    ("train pbt-sac --exploit tournament --population 1", 2, "--population must be at least 2 with --exploit tour"),
    ("train map-elites --env arm --episode-length 5", 2, "--episode-length has no effect on arm"),
    ("train diayn --env probe_value", 2, "--descriptor-full-state is needed"),
    ("train diayn --smerl --smerl-target 9 --smerl-fraction .5", 2, "give it or --smerl-target, not both"),
    ("train diayn --fitness acuracy", 2, "accuracy"),
    ("train lsd --space.slack 1e-3", 2, "rookery train lsd has no flag --space.slack"),
    ("train lsd --initial-dual 3", 2, "rookery train lsd has no flag --initial-dual"),
    ("train sac --env pursuit_continuous", 1, "is a multi-agent environment with 2 agents; use ippo"),
    ("train ippo --minibatches 3", 2, "must divide the 4096 rows of a rollout, with two steps"),
    ("train ippo --recurrent --num-envs 6 --minibatches 4", 2, "in each, got 4; use 2 or 3 or 6"),
    ("train pbt-ippo --select-by rating --fitness prey", 2, "--fitness has no effect with --select-by rating"),
    ("train pbt-ippo --rating-opponents 2 --fitness prey", 2, "--rating-opponents has an effect only with"),
    ("train pbt-ippo --select-by rating --population 1 --exploit none", 2, "--population must be at least 2"),
    ("train pbt-ippo --select-by rating --parameters shared", 1, "ratings let agents of different members play"),
    ("train pbt-ippo --select-by rating --best-by best_rating", 2, "--best-by cannot be a rating"),
    ("train pbt-sac --migrate-every 2", 2, "--migrate-every has an effect only with --islands; change that, or"),
    ("train pbt-sac --frequencies 1 2", 2, "--frequencies has an effect only with --exploit multi-frequency;"),
    ("train pbt-sac --exploit tournament --best-count 1", 2, "--best-count has an effect only with --exploit trun"),
    ("train pbt-sac --threshold-abs 1", 2, "--threshold-abs has an effect only with --exploit threshold; change"),
    ("train pbt-sac --round-patience 3", 2, "--round-patience has an effect only with --exploit-interval auto;"),
    ("train pbt-sac --exploit-interval auto --islands 2", 2, "--exploit-interval cannot be automatic with --isl"),
    ("train pbt-ppo --replace-count 1 --replace-fraction 0.5", 2, "has an effect only without --replace-count"),
    ("train pbt-td3 --perturb pb2 --resample-probability 0", 2, "--resample-probability has an effect only with -"),
    ("train pbt-td3 --exploit none --exploit-interval 10", 2, "has an effect only with another --exploit than"),
    ("train pbt-ippo --no-identify", 2, "--identify has an effect only with --parameters shared"),
    ("evaluate . --against other", 2, "has an effect only with --tournament"),
    ("evaluate . --tournament --goals 3", 2, "--goals has no effect with --tournament"),
    ("report . --port 80", 2, "--port has an effect only with --serve"),
    ("train program mine.py:build --option a=1 --option b=2", 2, "--option is given twice; give it once,"),
    ("train ippo --option capture_radius=abc", 2, "capture_radius must be a number, got 'abc'."),
    ("train pbt-ippo --member agent --fitness prey", 2, "--fitness has no effect with --member agent"),
    (
        "train cma-mae --survival dominated-novelty --archive-learning-rate 0.5",
        2,
        "--archive-learning-rate has no ef",
    ),
    ("train pbt-lsd --env CartPole-v1", 1, "pbt-lsd needs continuous actions, but CartPole-v1 has 2 discrete"),
    ("train ppo --space.activation rellu tanh", 2, "got rellu tanh; did you mean relu?"),
    ("resume .", 1, "config.json is missing"),
    *(
        (f"{words} {__file__}", code, "cli/test_cli.py is a file, not a run directory")
        for words, code in {"resume": 1, "compare": 1, "report": 1, "train sac --init-from": 2}.items()
    ),
]


@pytest.mark.parametrize(("arguments", "code", "expected"), REFUSED)
def test_an_error_is_one_message_and_no_file_is_written(rookery_command, tmp_path, arguments, code, expected):
    returned, out, err = rookery_command(*arguments.split())
    assert returned == code
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", out + err).split())
    assert expected in text
    assert "Traceback" not in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["train", "sac", "--run-dir", ""], ["train", "sac", "--run-dir="], ["evaluate", ""]])
def test_an_empty_value_is_rejected(rookery_command, words):
    code, _, err = rookery_command(*words)
    assert (code, "is empty; give" in err) == (2, True)


def test_the_last_of_two_lists_counts_and_values_may_begin_with_a_dash():
    spec = parse(
        "train sac --hidden-sizes 8 --hidden_sizes 16 4 --space.discount 0.9 --space.discount 0.8".split()
    ).spec
    assert (spec.agent.hidden_sizes, spec.space) == ((16, 4), {"discount": 0.8})
    assert parse(["render", "run", "--cell", "-0.2,0.8"]).cell == "-0.2,0.8"
    spec = parse("train program --option a=1 x.py:f".split()).spec
    assert (spec.flat["factory"], spec.flat["option"]) == ("x.py:f", ("a=1",))


def test_a_command_is_parsed_where_a_users_file_has_imported_pydantic():
    pytest.importorskip("pydantic")  # cyclopts then validates the defaults, of any type, too
    assert parse(["train", "sac", "--population", "3"]).spec.method.population == 3


def test_environment_steps_are_another_way_to_give_the_generations(rookery_command):
    for words, generations in (
        ("sac --steps 2500", 3),
        ("pbt-sac --steps 1e6", 1000),
        ("ppo --steps 1 --num-envs 4", 1),
    ):
        assert parse(["train", *words.split()]).spec.run.generations == generations
    for words, message in (
        ("sac --steps 5000 --generations 3", "--steps and --generations say the same"),
        ("map-elites --steps 5", "--steps is for kinds whose members train a known number of steps, not for map-eli"),
        ("sac --steps nan", "--steps must be a finite number, got nan."),
    ):
        code, _, err = rookery_command("train", *words.split())
        assert (code, err.startswith(f"error: {message}")) == (2, True)


def test_too_little_memory_is_one_message(rookery_command, monkeypatch, tmp_path):
    def greedy(*_):
        raise MemoryError("Unable to allocate 74.5 GiB")

    monkeypatch.setattr("rookery.experiments.methods.map_elites.find_cells", greedy)
    assert rookery_command("train", "map-elites", "--env", "arm") == (1, "", "error: Unable to allocate 74.5 GiB\n")
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_named_with_its_install_line(rookery_command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "brax", None)
    code, _, err = rookery_command("train", "sac", "--env", "hopper")
    assert (code, 'pip install "rookery[brax]"' in err) == (1, True)
    assert not list(tmp_path.iterdir())


def test_version(rookery_command):
    code, out, _ = rookery_command("--version")
    assert (code, bool(re.fullmatch(r"rookery \d+\.\d+\.\d+\n", out))) == (0, True)


def test_envs_lists_filters_and_describes(rookery_command, monkeypatch):
    out = printed("envs")
    assert [name for name in registry.names() if name not in out] == []
    monkeypatch.setenv("COLUMNS", "80")
    out = printed("envs", "ant")
    assert max(map(len, out.splitlines())) <= 80
    for text in ("ant_maze", "ant_uni", "observation size   27", 'pip install "rookery[brax]"'):
        assert text in out
    weight = "--space.env.control-weight: factor of the cost of actions, in [0, inf), 1 by default;"
    assert weight in " ".join(out.split())
    assert "--objective distance: metres travelled along x" in out
    assert "walker2d" not in out
    assert "--option predators=..." in printed("envs", "pursuit_discrete")
    code, _, error = rookery_command("envs", "antt")
    assert (code, error) == (2, "error: there is no task 'antt'; did you mean ant or ant_trap or mjx_ant?\n")


def test_ctrl_c_in_a_callback_of_the_garbage_collector_stops_a_command(rookery_command, monkeypatch):
    def interrupt(*_):
        gc.callbacks.remove(interrupt)
        raise KeyboardInterrupt

    def execute(_):
        late.start()
        gc.callbacks.append(interrupt)
        gc.collect()
        several = filter(None, itertools.repeat(0, 10_000_000))  # a signal meanwhile does not end the wait that follows
        select.select([reading], several, [])

    ended, (reading, writing) = [], os.pipe()
    late = threading.Timer(20, lambda: (ended.append("late"), os.write(writing, b"x")))
    monkeypatch.setattr(rookery.cli.app.commands, "execute", execute)
    monkeypatch.setattr(os, "_exit", lambda code: ended.append(code) or sys.exit(code))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores Ctrl-C
    try:
        assert rookery_command("envs") == (130, "", "\nstopped\n")
    finally:
        signal.signal(signal.SIGINT, before)
        late.cancel()
        os.close(reading)
        os.close(writing)
    assert ended == [130], "the process ends at once, also while it waits"


def test_ctrl_c_while_jax_calls_the_host_stops_a_command(rookery_command, monkeypatch, caplog):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "_exit", sys.exit)
    for send in (
        lambda row: buffer_callback(interrupt, row, has_side_effect=True)(row),
        lambda row: io_callback(interrupt, row, row),
    ):
        compiled = jax.jit(send).lower(jnp.zeros(1)).compile()
        monkeypatch.setattr(
            rookery.cli.app.commands, "execute", lambda _, step=compiled: jax.block_until_ready(step(jnp.zeros(1)))
        )
        assert rookery_command("envs") == (130, "", "\nstopped\n")
    assert caplog.text == "", "JAX would print its own trace before the sentence"


def test_a_record_of_an_older_version_and_one_that_builds_nothing():
    written = configure("td3", space={"policy_lr": (1e-5, 1e-2), "discount": "fixed", "tau": 0.01})
    older = json.loads(json.dumps(to_record(written)))
    del older["agent"]["critic_hidden_sizes"]  # as of a run that was recorded before there was such a setting
    assert from_record(older) == written
    for kind, message in (
        ("c51", "has no run kind 'c51'; install the package"),
        ("python", "started from Python, and"),
    ):
        with pytest.raises(ValueError, match=message):
            from_record({"kind": kind})
