"""`rookery.populations.Tuner`: selection and perturbation for training loops outside of this library."""

import json
import math
from functools import partial
from typing import Any, cast

import jax
import numpy as np
import pytest

import rookery
from rookery.hyperparams import Choice, LogUniform, LogWhole, Uniform, Whole
from rookery.populations import Tuner, pb2

SPACE = {
    "rate": LogUniform(1e-5, 1.0),
    "penalty": Choice("l1", "l2"),
    "batch": LogWhole(2, 64),
    "seed": 7,
    "loss": "log",
}
NAN = math.nan


def score(members):
    """Highest at the rate 1e-2."""
    return [-abs(math.log10(member["rate"]) + 2) for member in members]


def test_members_that_are_replaced_inherit_and_perturb_and_others_keep_theirs():
    tuner = Tuner(SPACE, population_size=8, seed=3)
    before = tuner.ask()
    for member in before:
        assert list(member) == list(SPACE)
        assert 1e-5 <= member["rate"] <= 1.0
        assert member["penalty"] in ("l1", "l2")
        assert (type(member["batch"]), 2 <= member["batch"] <= 64) == (int, True)
        assert (member["seed"], member["loss"]) == (7, "log")
    assert tuner.ask() == before
    parents = tuner.tell([0.0, NAN, 5.0, 1.0, -9.0, 2.0, 3.0, 6.0])
    after = tuner.ask()
    survivors = [0, 2, 3, 5, 6, 7]
    assert parents[survivors].tolist() == survivors
    assert {int(parents[1]), int(parents[4])} <= {2, 7}, "the best quarter"
    assert [after[index] for index in survivors] == [before[index] for index in survivors]
    for child in (1, 4):
        assert after[child]["rate"] != before[parents[child]]["rate"]
    assert after[1] != after[4]


def test_members_that_have_all_failed_get_other_hyper_parameters():
    tuner = Tuner(SPACE, population_size=4)
    before = tuner.ask()
    for failed in ([NAN] * 4, [math.inf, NAN, -math.inf, NAN]):
        assert tuner.tell(failed).tolist() == [0, 1, 2, 3]
        rates = {member["rate"] for member in before} | {member["rate"] for member in tuner.ask()}
        assert len(rates) == 8
        before = tuner.ask()
    assert tuner.tell([1e300, 1.0, -1e300, NAN]).tolist() == [0, 1, 2, 0], "finite, though float32 cannot hold them"
    kept = Tuner(SPACE, population_size=4, exploit="none")
    before = kept.ask()
    kept.tell([NAN] * 4)
    assert kept.ask() == before
    smooth = Tuner(SPACE, population_size=4, smooth=3)
    for fitness in ([4.0, 3.0, 2.0, 1.0], [NAN] * 4):
        smooth.tell(fitness)
    assert smooth.tell([1.0, 2.0, 3.0, 4.0])[0] == 3, "the first fitness was that of parameters that are gone"
    for _ in range(3):
        assert smooth.tell([3e38, 3.2e38, 2e38, 1.0]).tolist()[:3] == [0, 1, 2], "their sum is no number of float32"


@pytest.fixture(autouse=True)
def small_process(monkeypatch):
    """The bandit of PB2 searches less: the tests' programs are hardly optimised."""
    monkeypatch.setattr(pb2, "empty", partial(pb2.empty, rows=24))
    for name, value in (("FIT_STEPS", 4), ("CANDIDATES", 24), ("WIDTHS", (0.125,))):
        monkeypatch.setattr(pb2, name, value)


@pytest.mark.parametrize("options", [{"smooth": 2, "exploit_interval": 2}, {"perturb": "pb2"}], ids=["smooth", "pb2"])
def test_a_saved_tuner_continues_bit_for_bit(options, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    tuner = Tuner(SPACE, population_size=8, seed=1, **options)
    for _ in range(3):
        tuner.tell(score(tuner.ask()))
    tuner.save("~/tuner.json")
    assert (tmp_path / "tuner.json").stat().st_size < 100_000
    again = Tuner.load("~/tuner.json")
    assert again.generation == 3
    for _ in range(2):
        members, fitness = tuner.ask(), score(tuner.ask())
        assert again.ask() == members
        parents = tuner.tell(fitness)
        assert np.array_equal(again.tell(fitness), parents)
        changed = np.flatnonzero(parents != np.arange(8))
        assert (np.take(fitness, parents)[changed] > np.take(fitness, changed)).all()
    assert again.ask() == tuner.ask()


def test_the_population_finds_the_best_values():
    tuner = Tuner({"rate": SPACE["rate"]}, population_size=8, seed=5)
    first = np.median(score(tuner.ask()))
    for _ in range(20):
        tuner.tell(score(tuner.ask()))
    assert np.median(score(tuner.ask())) > 0.3 * first > -1.0


def test_the_space_of_an_agent_and_its_fixed_values():
    env = rookery.make("point_room")
    space = rookery.choose(rookery.sac(env.spec).space, policy_lr=(1e-5, 1e-2), discount=0.98)
    members = Tuner(space, population_size=4).ask()
    assert {member["discount"] for member in members} == {0.98}
    assert len({member["policy_lr"] for member in members}) == 4


def test_bounds_and_seeds_of_numpy_and_beyond_int32(tmp_path):
    one, two, seed = cast("Any", (np.float32(1), np.float32(2), np.int64(3)))
    space = {
        "constant": np.float32(0.5),
        "few": LogUniform(one, two),
        "many": LogUniform(1, 10**10),
        "whole": Whole(0, 2**31),
    }
    tuner = Tuner(space, population_size=4, seed=seed)
    path = tmp_path / "tuner.json"
    tuner.save(path)
    path.write_text(path.read_text(), encoding="utf-8-sig")  # as some editors do
    assert Tuner.load(path).ask() == tuner.ask()
    assert all(1 <= member["few"] <= 2 for member in tuner.ask())


def test_no_value_is_beyond_its_bounds_in_float64():
    whole, share = Whole(2**24 - 1, 2**24 + 3), Uniform(0.3, 0.3000001)  # float32 has neither upper bound
    tuner = Tuner({"whole": whole, "share": share}, population_size=64)
    members = tuner.ask()
    assert {member["whole"] for member in members} <= {*range(2**24 - 1, 2**24 + 4)}
    assert all(0.3 <= member["share"] <= 0.3000001 for member in members)


def test_a_masked_score_is_that_of_a_failed_member():
    scores = np.ma.array([0.0, 1.0, 2.0, 9.0], mask=[False, False, False, True])
    masked, missing = (Tuner(SPACE, population_size=4).tell(given) for given in (scores, [0.0, 1.0, 2.0, np.nan]))
    assert masked.tolist() == missing.tolist()
    assert masked[3] != 3


def test_names_that_python_has_no_variables_for(tmp_path):
    tuner = Tuner({"learning-rate": LogUniform(1e-4, 1.0), "lambda": Choice("l1", "l2"), "_x": 3}, population_size=2)
    assert [set(member) for member in tuner.ask()] == [{"learning-rate", "lambda", "_x"}] * 2
    with jax.debug_nans(True):
        tuner.tell([1.0, np.nan])
        tuner.save(tmp_path / "tuner.json")
        assert Tuner.load(tmp_path / "tuner.json").ask() == tuner.ask()


def test_what_is_refused(tmp_path):
    with jax.enable_x64(True), pytest.raises(ValueError, match="jax_enable_x64 is on"):
        Tuner(SPACE)
    refused: Any = (
        ({**SPACE, "fitness": 0.1}, {}, ValueError, "the hyper-parameter 'fitness' needs another name"),
        ({"rate": (1e-4, 1.0)}, {}, TypeError, "rate must be a domain, such as LogUniform"),
        ({"rate": 0.1}, {}, ValueError, "no hyper-parameter has a domain"),
        (SPACE, {"purturb": "pb2"}, TypeError, "PbtConfig has no field purturb; did you mean perturb"),
        (SPACE, {"exploit_interval": "auto"}, ValueError, "exploit_interval needs members that are trained by this"),
        (SPACE, {"population_size": 1}, ValueError, "population_size must be at least 2"),
    )
    for space, options, error, message in refused:
        with pytest.raises(error, match=message):
            Tuner(space, **options)
    tuner = Tuner(SPACE, population_size=4)
    with pytest.raises(ValueError, match=r"the fitness \[4\] of all members, got the shape \[3\]"):
        tuner.tell([0.0, 1.0, 2.0])
    for content in ("no file", '{"format": 2}', '{"format": 1, "arguments": {"space": {}}}'):
        (tmp_path / "other").write_text(content)
        with pytest.raises(ValueError, match="other is no file of a Tuner"):
            Tuner.load(tmp_path / "other")
    tuner.save(tmp_path / "other")
    saved = json.loads((tmp_path / "other").read_text())
    others = {"arguments": {**saved["arguments"], "seed": 1}, "state": [1, *saved["state"][1:]], "sha256": "0"}
    for name, other in others.items():
        (tmp_path / "other").write_text(json.dumps({**saved, name: other}))
        with pytest.raises(ValueError, match=r"other is no file of a Tuner \(it was edited\)"):
            Tuner.load(tmp_path / "other")
