"""Environments of Gymnasium by id and by function, and what is wrong with others."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rookery.envs import registry
from rookery.envs.suites.gymnasium import adapter
from rookery.envs.suites.gymnasium.adapter import from_gymnasium
from tests.envs import gymnasium_environments as own
from tests.envs.gymnasium_environments import Counter, limited


def test_a_registered_task() -> None:
    env = registry.make("gym:Pendulum-v1", workers=3, timeout=5.0)
    spec = env.spec
    assert (spec.name, spec.observation_size, spec.action_size, spec.episode_length) == ("gym:Pendulum-v1", 3, 1, 200)
    assert not spec.discrete
    assert env.settings["environment"] == {"env": "gym:Pendulum-v1", "workers": 3, "timeout": 5.0}
    assert env.host is not None
    assert len(vars(env.host)["_workers"]) == 3
    assert registry.make("gym:Pendulum-v1", episode_length=7).spec.episode_length == 7


def test_options_are_those_of_the_task() -> None:
    env = registry.make("gym:Hopper-v5", exclude_current_positions_from_observation=False)
    assert env.spec.observation_size == registry.make("gym:Hopper-v5").spec.observation_size + 1 == 12


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("registers_a_counter", "gym:registers_a_counter:mine/Counter-v3"),
        ("ale_py", "gym:ALE/Pong-v5"),  # Atari needs no module in its name
    ],
)
def test_a_module_that_registers_a_task_is_imported_from_the_current_folder(
    module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    if name.startswith("gym:ALE"):
        with pytest.raises(
            ImportError, match="gym:ale_py:ALE/Pong-v5 needs the package ale_py, which is not installed"
        ):
            registry.make(name)
    monkeypatch.chdir(tmp_path)
    registered = name.rpartition(":")[2]
    made = "tests.envs.gymnasium_environments:Counter"
    (tmp_path / f"{module}.py").write_text(
        f"import gymnasium\ngymnasium.register({registered!r}, {made!r}, max_episode_steps=6)\n"
    )
    env = registry.make(name)
    assert (env.spec.name, env.spec.episode_length, env.settings["environment"]) == (name, 6, {"env": name})
    _, first = own.starts(env, [3])
    np.testing.assert_array_equal(first.observation.features[0], np.float32(Counter().reset(seed=3)[0]))
    with pytest.raises(ValueError, match=rf"no environment '.*{registered[:-1]}4'.*{registered}"):
        registry.make(name[:-1] + "4")
    del gymnasium.registry[registered], sys.modules[module]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("gym:Hoper-v5", ValueError, r"no environment 'Hoper-v5'; did you mean gym:Hopper-v5"),
        ("gym:Hopper-v99", ValueError, r"no environment 'Hopper-v99' \(.*v99.*doesn't exist.*did you mean gym:Hopper"),
        ("gym:Qqqqqqqqqq", ValueError, r"named with the module that registers it, as in gym:my_package:MyEnv-v0"),
        ("gym:no_module:X-v0", ImportError, "gym:no_module:X-v0 needs the package no_module, which is not installed"),
        ("gym:./folder/mine.py:X-v0", ValueError, "names a file; give the module that .*: gym:mine:X-v0"),
    ],
)
def test_names_that_are_unknown(name: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        registry.make(name)


def test_gymnasium_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter._import.cache_clear()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "gymnasium", None)
        with pytest.raises(ImportError, match=r'needs Gymnasium \(.*install it: pip install "rookery\[gymnasium\]"'):
            registry.make("gym:Hopper-v5")
        with pytest.raises(ImportError, match="needs Gymnasium"):
            from_gymnasium(partial(limited, Counter))
    adapter._import.cache_clear()


def test_a_dependency_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(*_: Any, **__: Any) -> None:
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed, run `pip install mujoco`.\nmore")

    monkeypatch.setattr(gymnasium, "make", create)
    with pytest.raises(ImportError, match=r"^gym:Hopper-v5 needs another package: MuJoCo is not.*mujoco`\.$"):
        registry.make("gym:Hopper-v5")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"episode_length": 0}, "episode_length must be at least 1, got 0"),
        ({"episode_length": 201}, "truncates episodes after 200 steps; give an episode_length up to 200"),
        ({"worker_kind": "fibres"}, "worker_kind must be threads or processes, got 'fibres'"),
        ({"timeout": 0.0}, "timeout must be above 0 seconds, got 0"),
        ({"gravitation": 9.0}, r"gym:Pendulum-v1 raised TypeError when it was created: .*gravitation"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.make("gym:Pendulum-v1", **options)


def raises() -> Any:
    raise KeyError("robot.xml")


@pytest.mark.parametrize(
    ("make_env", "message"),
    [
        (Counter, "gym:Counter has no time limit of its own; give episode_length, as in from_gymnasium"),
        (raises, "the environment of make_env raised KeyError when it was created: 'robot.xml'"),
        (lambda: gymnasium.make_vec("CartPole-v1", 2), "make_env returned a vector environment instead of a gymnasium"),
        (limited(Counter), "takes a function that creates environments, got TimeLimit; pass lambda"),
    ],
)
def test_functions_that_are_wrong(make_env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_gymnasium(make_env)


def test_the_smallest_time_limit_counts_and_a_descriptor_needs_its_function() -> None:
    with pytest.raises(ValueError, match="takes descriptor and describe together"):
        from_gymnasium(partial(limited, Counter), descriptor=own.SHARE)
    twice = partial(limited, partial(limited, Counter, 4), 9)
    assert from_gymnasium(twice).spec.episode_length == 4
    with pytest.raises(ValueError, match="truncates episodes after 4 steps"):
        from_gymnasium(twice, episode_length=5)
    assert from_gymnasium(Counter, episode_length=11).spec.episode_length == 11
