"""Every public function has an example; they run, each night (`pytest -m nightly`)."""

import doctest
import importlib
import inspect
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest

import rookery
from rookery.envs.suites import third_party
from tests import short_runs

PACKAGES = ("agents", "deploy", "envs", "experiments", "learners", "populations", "qd", "report", "training")
MODULES = [rookery, *(importlib.import_module(f"rookery.{name}") for name in PACKAGES)]
FUNCTIONS = {
    f"{value.__module__}.{name}": value
    for module in MODULES
    for name, value in ((name, getattr(module, name)) for name in module.__all__)
    if inspect.isfunction(value)
}


SUITES = {
    "brax": "brax.envs",
    "gymnasium": "gymnasium",
    "gymnax": "gymnax",
    "jaxmarl": "jaxmarl",
    "mujoco_playground": "mujoco_playground",
}
"""Package that an example uses -> module to import."""


def suites_of(source: str) -> dict[str, object]:
    """The packages of other suites that the source of an example uses."""
    with third_party.quiet_import():
        used = [name for name in SUITES if re.search(rf"(?<![._]){name}\.", source)]
        return {name: (importlib.import_module(SUITES[name]), importlib.import_module(name))[1] for name in used}


FLOWS = {
    "rookery.agents.check.check_agent",
    "rookery.deploy.export.export",
    "rookery.learners.base.genotype",
    "rookery.learners.rollout.act",
    "rookery.learners.skills.freeze_skills",
    "rookery.learners.train.train",
    "rookery.loading.load",
    "rookery.loading.train",
    "rookery.running.run",
}
"""What the guides and the tests of these functions run as well, in seconds."""


def test_every_public_function_has_an_example_that_compiles():
    assert set(FUNCTIONS) >= FLOWS
    for name, function in FUNCTIONS.items():
        examples = doctest.DocTestParser().get_examples(inspect.getdoc(function) or "", name)
        assert examples, f"{name} has no example"
        for example in examples:
            compile(example.source, name, "exec")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] if name in FLOWS else []) for name in FUNCTIONS]
)
def test_example_of_a_public_function(name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch):
    """In a folder that it may write to, with copies of the finished runs that it names."""
    monkeypatch.chdir(tmp_path)
    function: Callable = FUNCTIONS[name]
    for kind in set(re.findall(r"runs/([\w-]+)", function.__doc__ or "")) & set(short_runs.KINDS):
        shutil.copytree(request.getfixturevalue("short_runs")[kind], tmp_path / "runs" / kind)
    names = {"rookery": rookery, "jax": jax, "jnp": jnp, "NamedTuple": NamedTuple}
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, globs=names)
    example.globs |= suites_of("".join(line.source for line in example.examples))
    messages: list[str] = []
    with third_party.ignored_warning("Brax System"):  # a notice of deprecation whenever Brax loads a model
        assert not doctest.DocTestRunner().run(example, out=messages.append).failed, "".join(messages)
