"""The head of a page: result, progress, facts, problems, command and settings of a run."""

import json
from pathlib import Path

import numpy as np
import pytest

from rookery.cli.app import parse
from rookery.experiments.config_io import run_record
from rookery.report.formatting import duration, equal_decimals, no_qd_score, number, significant, steps_text
from rookery.report.readers import open_run
from rookery.report.runs import Run
from rookery.report.sections import summary
from rookery.storage.csv_log import write_table
from rookery.storage.record import DEFAULTS, with_first_defaults, without_defaults
from tests.written_runs import METRICS, write

NAN, INF = float("nan"), float("inf")
LAST = {"env_steps": 1.5e6, "best_fitness": 2.0, "median_fitness": 1.0, "worst_fitness": -1.0}
REPERTOIRE = {"coverage": 31.25, "max_fitness": 12_345.6, "qd_score": 0.5}
BEST = "best 12,346, QD score 0.5"
SPHERE = {"skills": {"num_skills": 2, "skill_kind": "sphere"}}
TEAM = {"return/prey": 10.0, "return/predator": -10.5}
CPU = {"devices": "2 cpu devices", "kind": "cpu", "cpu": "Fast 9", "cores": 1, "memory": 2**33}
BEGAN = {"event": "began", "at": "2026-01-02T03:04:05+00:00", "generation": 0, "hardware": CPU}
ENDED = {"event": "ended", "at": "2026-01-02T04:00:00+00:00", "generation": 3, "why": "finished"}


def arrays(values):
    return {name: np.array([0.0, value]) for name, value in values.items()}


def metrics(**more):
    return {name: np.array(values) for name, values in {"generation": (0, 1, 2), **METRICS, **more}.items()}


@pytest.mark.parametrize(
    ("last", "config", "text"),
    [
        ({}, {}, "Best fitness 2, median 1"),
        ({"worst_fitness": 2.0}, {}, "Best fitness 2"),
        ({"best_fitness": NAN}, {}, "No member has a finite fitness"),
        (TEAM, {}, "Returns: prey 10, predator -10.5"),
        ({"return/agent": 3.0}, {}, "Best fitness 2, median 1"),
        ({f"return/{i}": 0.0 for i in range(7)}, {}, "Best fitness 2, median 1"),
        ({"accuracy": 0.756}, {"skills": {"num_skills": 8}}, "Discriminator accuracy 76 % for 8 skills"),
        ({"accuracy": 0.5}, SPHERE, "Discriminator accuracy 50 % for directions in 2 dimensions"),
        (REPERTOIRE | {"below_offset": 1.0}, {}, f"31.2 % of the cells covered, {BEST}"),
        ({}, {"learner": {"objective": "success"}}, "Best success 2, median 1"),
        (REPERTOIRE, {"evaluation": {"objective": "success"}}, f"31.2 % of the cells covered, best success{BEST[4:]}"),
        (REPERTOIRE, {"cells": {"cells": 1024, "grid": None}}, f"31.2 % of 1,024 cells covered, {BEST}"),
        (REPERTOIRE, {"cells": {"cells": 1024, "grid": [4, 5]}}, f"31.2 % of 20 cells covered, {BEST}"),
        (REPERTOIRE, {"cells": {"cells": 9, "grid": [None]}}, f"31.2 % of the cells covered, {BEST}"),  # edited
    ],
)
def test_the_result_is_one_line(last, config, text):
    assert summary.result(config, arrays(LAST | last)) == f"{text}, after 1.5M environment steps"


def test_a_qd_score_of_0_says_why():
    last = arrays(LAST | REPERTOIRE | {"qd_score": 0.0, "below_offset": 8.0})
    assert summary.result({}, last).endswith("; " + str(no_qd_score({"qd_score": 0.0, "below_offset": 8.0})))
    assert "with the offset of the task (`qd_offset`) added to" in summary.result({}, last)
    assert "offset" not in summary.result({}, last | arrays({"below_offset": 0.0}))


def test_new_episodes_of_the_best_member_have_an_interval(tmp_path):
    keys = {"generation": [7] * 4, "member": [2] * 4, "episode": range(4)}
    folder = write(tmp_path, {"learner": {"objective": "success"}})
    assert not [fact for fact in summary.head(open_run(folder))["facts"] if fact[0] == "best member"]
    write_table(folder / "evaluation.csv", {**keys, "return": [-1.0, -0.0, 0.0, 1.0], "measure/success": [1, 1, 0, 1]})
    (text,) = [fact[1] for fact in summary.head(open_run(folder))["facts"] if fact[0] == "best member"]
    assert text == "success 0.75 in 4 new episodes, 95 % interval 0.25 to 1 (member 2 after generation 7)"
    ((_, text),) = summary.evaluated({}, {**keys, "return": np.ones(4)})
    assert text == "return 1 in each of 4 new episodes (member 2 after generation 7)"
    ((_, text),) = summary.evaluated({}, open_run(folder).evaluation)
    assert text.startswith("return 0 in 4 new episodes, 95 % interval -")


@pytest.mark.parametrize(
    "text", [number(-0.0), significant(-0.0), *equal_decimals(np.array([-0.0, -0.01, 500.0]))[0][:2]]
)
def test_no_number_is_a_negative_zero(text):
    assert text.strip("0.") == ""


def runs(*fitness):
    """Independent members, each with its fitness in the last two generations."""
    return [Run(Path("run"), 0, np.asarray([1.0, 2.0]), np.asarray(values)) for values in fitness]


@pytest.mark.parametrize(
    ("last", "fitness", "text"),
    [
        ({}, [(0.0, 1.0), (0.0, 2.0)], "Fitness 1.5 (interquartile mean, 95 % interval 1 to 2)"),
        ({}, [(0.0, 1.0), (0.0, NAN)], "Fitness 0.5 (interquartile mean, 95 % interval 0 to 1)"),
        ({"best_fitness": NAN}, [(0.0, NAN), (0.0, NAN)], "No member has a finite fitness"),
        (TEAM, [(0.0, 1.0), (0.0, 2.0)], "Mean returns of 2 seeds: prey 10, predator -10.5"),
    ],
)
def test_the_result_of_independent_members_is_an_interquartile_mean(last, fitness, text):
    result = summary.result({}, arrays(LAST | last), runs(*fitness))
    assert result == f"{text}, after 750k environment steps of each of 2 seeds"


@pytest.mark.parametrize(
    ("journal", "goal", "text", "over"),
    [
        ([BEGAN, ENDED], 3, "finished, 3 of 3 generations", True),
        ([BEGAN, ENDED | {"why": "interrupted by SIGTERM"}], 9, "interrupted by SIGTERM, 3 of 9 generations", True),
        ([BEGAN, ENDED, BEGAN], 9, "running, or killed, 3 of 9 generations", False),
        ([], 3, "finished, 3 of 3 generations", True),
        ([], "many", "running, or killed, 3 generations", False),
    ],
)
def test_the_state_of_a_run(journal, goal, text, over):
    assert summary.state({"run": {"generations": goal}}, journal, metrics()) == {"text": text, "over": over}


def test_durations_and_numbers():
    durations = {0.0123: "0.0123 s", 59.4: "59.4 s", 59.6: "1 min 0 s", 200.2: "3 min 20 s", 3599.9: "1 h 0 min"}
    durations |= {90_061: "25 h 1 min", float(3600 * 2**60): f"{2**60} h 0 min", INF: "inf s"}
    assert {seconds: duration(seconds) for seconds in durations} == durations
    numbers = {0.00012346: "0.0001235", 9999.4: "9999", 9999.5: "10,000", 12345.6: "12,346", -1e6: "-1,000,000"}
    numbers |= {1e12: "1e+12", INF: "inf"}
    assert {value: number(value) for value in numbers} == numbers
    assert number(NAN) == "nan"
    steps = {950: "950", 20_000: "20k", 1_536_000: "1.536M", 2_000_000_000: "2B"}
    assert {value: steps_text(value) for value in steps} == steps


def test_the_phases_of_a_generation_are_added():
    result = metrics(seconds_tables=(0.5, 0.5, 0.0), seconds_checkpoint=(0.0, 1.0, 0.25))
    assert summary.seconds(result).tolist() == [2.5, 4.5, 4.25]
    assert summary.seconds(metrics()).tolist() == [2.0, 3.0, 4.0], "a run of an older version has one phase"
    edited = metrics(seconds=(1.0, INF, 3.0), seconds_evaluation=(1.0, -INF, NAN))
    assert summary.seconds(edited).tolist() == [1.0, 0.0, 3.0]
    assert summary.evaluation_share(edited) == 0.25


class TestFacts:
    def test_facts_are_of_the_first_start_and_the_last_hardware(self):
        config = {"population": 8, "run": {"seed": 3}}
        again = BEGAN | {"at": "2027-01-01T00:00:00+00:00", "versions": {"jax": "0.9"}, "hardware": CPU | {"cores": 4}}
        compiled = [{"event": "compiled", "seconds": 60.0}, {"event": "compiled", "seconds": 5.0}]
        result = summary.facts(
            config, {"rookery": "0.1", "jax": "0.8", "numpy": "2"}, [BEGAN, *compiled, again], metrics()
        )
        assert result == [
            ["population", "8"],
            ["seed", "3"],
            ["environment steps", "300"],
            ["time without compilation", "9 s"],
            ["compilation", "1 min 5 s"],
            ["devices", "2 cpu devices"],
            ["processor", "Fast 9, 4 cores, 8 GiB"],
            ["versions", "rookery 0.1, jax 0.9"],
            ["started", "2026-01-02 03:04"],
        ]

    def test_independent_members_have_steps_of_each_and_an_accelerator_is_named_by_its_kind(self):
        began = BEGAN | {"hardware": {"kind": "H100", "cpu": "Fast 9", "cores": 1}}
        result = dict(summary.facts({"population": 3}, {}, [began], metrics(), seeds=3))
        assert result["independent members"] == "3"
        assert result["environment steps"] == "300, 100 each"
        assert "population" not in result
        assert result["processor"] == "H100, 1 core"

    def test_missing_facts_are_left_out(self):
        facts = [["environment steps", "300"], ["time without compilation", "9 s"]]
        assert summary.facts({}, {}, [], metrics()) == facts
        odd = {"environment": "hopper", "run": 3, "space": [1, 2]}
        for hardware in (None, {"memory": "x"}):
            assert summary.facts(odd, {}, [{"event": "began", "hardware": hardware}], metrics()) == facts


def counts(journal, **columns):
    return {entry["name"]: entry["count"] for entry in summary.problems(metrics(**columns), journal)}


class TestProblems:
    def test_counts_are_summed_over_the_run_except_for_states(self):
        result = counts([], diverged=(1.0, NAN, 2.0), rejected=(0.0, 0.0, 0.0), below_offset=(5.0, 3.0, 1.0))
        assert result == {"diverged": 3, "rejected": 0, "below_offset": 1, "damaged": 0, "killed": 0}
        # A start without an end before it is a kill; after the last one, the run may be in progress.
        assert counts([BEGAN, BEGAN, ENDED, BEGAN, BEGAN])["killed"] == 2
        assert counts([BEGAN, ENDED, BEGAN])["killed"] == counts([BEGAN])["killed"] == 0

    def test_equal_warnings_are_listed_once_and_damaged_checkpoints_counted(self):
        damaged = {"event": "warned", "message": "The checkpoint of generation 3 is damaged and was passed over: x."}
        full = {"event": "warned", "message": "the state is larger than memory"}
        result = summary.problems(metrics(), [BEGAN, damaged, full, damaged, ENDED])
        assert [(entry["meaning"], entry["count"]) for entry in result] == [
            ("damaged checkpoints that were skipped", 2),
            ("times that the run was killed and continued", 0),
            (damaged["message"], 1),
            (full["message"], 1),
        ]


def test_the_command_is_that_of_the_start_not_of_a_resume():
    words = ["rookery", "train", "sac", "--run-dir", "a b"]
    later = {**BEGAN, "generation": 4, "command": ["rookery", "resume", "run"]}
    assert summary.command([BEGAN | {"command": words}, later]) == "rookery train sac --run-dir 'a b'"
    assert summary.command([later]) == summary.command([]) == ""


class TestSettings:
    def test_only_settings_that_differ_from_the_defaults_that_the_run_recorded(self):
        words = "pbt-sac --env point_room --population 4 --run-dir here --live --quiet --overwrite"
        record = json.loads(json.dumps(run_record(parse(["train", *words.split()]).spec)))
        assert summary.differences(record) == [
            {"name": "population", "value": "4", "default": "8"},
            {"name": "environment.env", "value": "point_room", "default": "hopper"},
        ]
        longer = record | {"run": {**record["run"], "generations": 900}, DEFAULTS: {"learner.batch_size": 512}}
        assert with_first_defaults(longer, record)[DEFAULTS] == record[DEFAULTS] | {"run.generations": 500}
        assert DEFAULTS not in without_defaults(record)

    def test_all_settings_where_the_defaults_are_not_recorded(self):
        settings = {"a": {"b": [1, 2.5], "c": True, "d": None}, "run": {"run_dir": "x"}, "space": {"lr": 1}}
        for kind in ("python", "pbt-sac"):
            assert summary.differences({"kind": kind, **settings}) == [
                {"name": "a.b", "value": "1 2.5", "default": ""},
                {"name": "a.c", "value": "true", "default": ""},
            ]
            assert DEFAULTS not in with_first_defaults({DEFAULTS: {"a.c": False}}, {"kind": kind, **settings})

    def test_the_text_of_a_search_space(self):
        python = {"lr": {"scale": "LogUniform", "low": 1e-5, "high": 0.01}, "tau": 0.005, "discount": [0.9, 0.999]}
        result = summary.space({"space": python})
        assert result == [
            ["lr", "evolves in [1e-05, 0.01]"],
            ["tau", "is 0.005"],
            ["discount", "evolves in [0.9, 0.999]"],
        ]
        assert summary.space({"space": None}) == summary.space({}) == []
        seeds, hyper = {"kind": "sac", "draw_hyper": False}, {"discount": np.full((2, 3), np.float32(0.99), np.float64)}
        for settings, chosen in (
            ({"kind": "pbt-sac", "pbt": {"exploit": "truncation"}}, "evolves in [0.9, 0.999]"),
            ({"kind": "pbt-sac", "pbt": {"exploit": "none"}}, "is drawn once in [0.9, 0.999]"),
            ({"kind": "sac", "draw_hyper": True}, "is drawn once in [0.9, 0.999]"),
            (seeds, "is 0.99"),
            ({**seeds, "schedule": {"values": {"discount": [0.9]}}}, "follows the replayed schedule"),
        ):
            space = summary.space({**settings, "space": {"discount": [0.9, 0.999], "tau": 0.005}}, hyper)
            assert space == [["discount", chosen], ["tau", "is 0.005"]]


def test_a_head_of_a_run_of_an_older_version(tmp_path):
    result = summary.head(open_run(write(tmp_path / "run <b>", {"kind": "sac"})))
    assert (result["name"], result["kind"], result["env"]) == ("run <b>", "sac", "room")
    assert result["result"] == "Best fitness 2, median 1.5, after 300 environment steps"
    assert result["state"] == {"text": "finished, 3 of 3 generations", "over": True}
    assert (result["events"], result["memory"]) == ([], None)


def test_a_head_has_the_journal_and_the_memory_of_the_last_end(tmp_path):
    compiled = {"event": "compiled", "seconds": 1.25}
    ends = [ENDED | {"memory": {"planned": size}} for size in (1, 2)]
    journal = [BEGAN, compiled, ends[0], BEGAN | {"generation": 3}, ends[1], {"event": "x"}]
    result = summary.head(open_run(write(tmp_path / "run", journal=journal)))
    assert result["memory"] == {"planned": 2}
    texts = [event["text"] for event in result["events"]]
    end = "finished after generation 3"
    assert texts == ["started with generation 1", "compiled in 1.2 s", end, "started with generation 4", end, "x"]
    assert result["events"][0]["at"] == "2026-01-02 03:04:05"
