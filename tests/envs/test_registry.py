"""The registry: what it lists is what it builds and passes the check, and mistakes are answered."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from rookery.envs import registry
from rookery.envs.base import Environment
from rookery.envs.check import check_environment
from rookery.envs.suites import gymnax
from rookery.envs.tasks import functions
from rookery.experiments.parts import option_values

# Playground's tasks take seconds each: `test_envs` compares one with its row, `test_mjx_tasks` one of Brax on MJX.

# Entries that are made as those of another robot; `test_brax` has their feet and rewards, `test_brax_walls` the walls.
ALIKE = ("walker2d_uni", "halfcheetah_uni", "ant_uni", "humanoid_uni", "humanoid_omni", "humanoid_trap")
# Of the tasks of JaxMARL one of each environment class takes a step, and of those of MPE one of each kind of action.
STEPPED = (
    *("MPE_simple_speaker_listener_v4", "MPE_simple_world_comm_v3", "SMAX_3m", "SMAX_smacv2_5_units"),
    *("overcooked_cramped_room", "overcooked_v2_cramped_room", "switch_riddle", "coin_game", "storm_2p"),
    *("hanabi", "jaxnav", "hopper_3x1"),
    *gymnax.TASKS,
)


def types(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)


def assert_steps_are_as_specified(env: Environment) -> None:
    """Trace a reset and a step; their shapes and types are those of the specification."""
    spec, agents = env.spec, env.spec.agents
    state, start = jax.eval_shape(env.reset, jax.random.key(0))
    action = jax.ShapeDtypeStruct(
        *((agents, jnp.int32) if spec.discrete else ((*agents, spec.action_size), jnp.float32))
    )
    after, step = jax.eval_shape(env.step, state, action, jax.random.key(0))
    assert types(state) == types(after), "whatever comes out of a step fits where a reset's result went"
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
    for one in (start, step):
        features = one.observation.features
        assert (features.shape, features.dtype) == ((*agents, spec.observation_size), jnp.float32)
        assert (one.reward.shape, one.reward.dtype) == (agents, jnp.float32)
        assert {flag.shape for flag in (one.terminated, one.truncated)} == {agents}
        assert (one.broken.shape, one.descriptor.shape) == ((), (spec.descriptor_size,))
        assert (one.observation.action_mask is not None) == spec.masked
    if spec.team:
        assert max(spec.team.observation_sizes) == spec.observation_size
        assert max(spec.team.action_sizes) == spec.action_size


def built() -> list[str]:
    """The tasks that are built here: of the maps of SMAX and Overcooked, which differ by sizes only, the smallest and
    the largest, and those that take a step."""
    names = [name for name in registry.names() if registry.find(name).suite != "playground" and name not in ALIKE]
    for family in ("SMAX_", "overcooked_"):
        maps = [name for name in names if name.startswith(family)]
        alike = sorted(maps, key=lambda name: registry.find(name).observation_size)[1:-1]
        names = [name for name in names if name not in alike or name in STEPPED]
    return names


@pytest.mark.parametrize("name", built())
def test_the_table_matches_the_built_tasks(name: str) -> None:
    task, env = registry.find(name), registry.make(name)
    spec = env.spec
    assert spec[:8] == (
        name,
        task.observation_size,
        task.action_size,
        task.episode_length,
        task.discrete,
        task.descriptor,
        task.qd_offset,
        None,  # skills are no part of a task
    )
    assert (len(spec.team.names) if spec.team else 1) == task.agents
    assert not spec.recurrent
    assert (spec.parameters, dict(spec.measures or {})) == (task.parameters, dict(task.measures))
    row = registry.describe(name)
    assert (row["task"], row["observation_size"], row["action_size"]) == (name, task.observation_size, task.action_size)
    assert row["descriptor_size"] == spec.descriptor_size
    assert row["episode_length"] == spec.episode_length
    if name in STEPPED:
        assert_steps_are_as_specified(env)


def test_a_task_of_a_suite_passes_the_check() -> None:
    check_environment(registry.make("Pendulum-v1", episode_length=8))


def test_the_documentation_describes_every_task() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "tasks.md").read_text()
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.split("### Offsets")[0].splitlines()
    ]
    description = {cells[0].strip("`"): cells for cells in lines if cells[0].startswith("`") and len(cells) > 2}
    assert set(description) == {row["task"] for row in registry.table()}
    for row in registry.table():
        cells = description[row["task"]]
        if row["descriptor"]:
            assert float(cells[-1]) == row["qd_offset"], cells
        if row["suite"] in ("brax", "gymnax", "jaxmarl", "playground"):
            sizes = [cells[1], *cells[2].split()]
            discrete = ["discrete"] if row["actions"] == "discrete" else []
            assert sizes == [str(row["observation_size"]), str(row["action_size"]), *discrete], cells
        if row["suite"] == "jaxmarl":
            assert cells[3:5] == [str(row["agents"]), str(row["episode_length"])], cells
        if row["suite"] == "gymnax":
            assert cells[3] == str(row["episode_length"]), cells


def test_rows_share_their_columns_and_a_scoring_function_is_listed_but_not_built() -> None:
    rows = registry.table()
    assert [row["task"] for row in rows] == [*registry.names(), *functions.names()]
    assert len({tuple(row) for row in rows}) == 1
    assert {row["extra"] for row in rows} == {None, "brax", "gymnax", "jaxmarl", "playground", "brax,jaxmarl"}
    row = registry.describe("arm")
    assert (row["suite"], row["observation_size"], row["action_size"]) == ("function", 0, 8)
    assert (row["episode_length"], row["qd_offset"], row["extra"]) == (None, 0.5, None)
    assert (row["descriptor_lower"], row["descriptor_upper"]) == ((0.0, 0.0), (1.0, 1.0))
    assert str(registry.describe("sphere")["qd_offset"]) == "0.0"  # no minus in the table
    assert not set(functions.names()) & set(registry.names())
    with pytest.raises(
        ValueError, match="'arm' is a scoring function for MAP-Elites, not an environment; use `rookery"
    ):
        registry.make("arm", episode_length=3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("walker_uni", {}, r"no task 'walker_uni'; did you mean walker2d_uni"),
        ("zzz", {}, r"no task 'zzz'; `rookery envs` lists"),
        ("point_maze", {"backend": "x"}, r"'point_maze' has no override backend; it has epis"),
    ],
)
def test_an_unknown_name_or_override_is_answered_with_those_that_exist(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry.make(name, **options)


def test_overrides_reach_the_environment_and_only_chosen_options_are_recorded() -> None:
    """As on the command line; otherwise the same task would be two tasks for `rookery compare`."""
    assert registry.make("point_room").settings == {"environment": {"env": "point_room"}}
    chosen = registry.make("point_room", episode_length=20)
    assert chosen.spec.episode_length == 20
    assert chosen.settings == {"environment": {"env": "point_room", "episode_length": 20}}


PROBES = [  # name, coefficients c of the reward -(c0 + c1 observation - c2 action)^2 + c3 + c4 observation
    ("probe_value", (0.0, 0.0, 0.0, 1.0, 0.0)),
    ("probe_observation", (0.0, 0.0, 0.0, 0.0, 1.0)),
    ("probe_action", (0.5, 0.0, 1.0, 0.0, 0.0)),
    ("probe_both", (0.0, 0.5, 1.0, 0.0, 0.0)),
]


@pytest.mark.parametrize(("name", "c"), PROBES)
def test_probes_of_one_step(name: str, c: tuple[float, ...]) -> None:
    env = registry.make(name)
    observations = set()
    for seed in range(8):
        state, start = env.reset(jax.random.key(seed))
        observation = float(start.observation.features[0])
        observations.add(observation)
        for action in (-1.0, 0.25, 0.5):
            _, step = env.step(state, jnp.asarray([action]), jax.random.key(0))
            expected = -((c[0] + c[1] * observation - c[2] * action) ** 2) + c[3] + c[4] * observation
            assert float(step.reward) == pytest.approx(expected)
            assert bool(step.terminated)
            assert not bool(step.truncated)
    assert observations == ({-1.0, 1.0} if name in ("probe_observation", "probe_both") else {0.0})


@pytest.mark.parametrize(
    ("name", "expected"),  # observation before the step, reward, terminated, truncated
    [
        ("probe_discount", [(0.0, 0.0, False, False), (1.0, 1.0, True, False)]),
        ("probe_truncation", [(0.0, 1.0, False, False)] * 4 + [(0.0, 1.0, False, True)]),
    ],
)
def test_probe_discount_pays_at_the_end_and_probe_truncation_only_runs_out_of_time(name: str, expected: list) -> None:
    env = registry.make(name)
    (state, last), found = env.reset(jax.random.key(0)), []
    for t in range(len(expected)):
        before = float(last.observation.features[0])
        state, last = env.step(state, jnp.zeros(1), jax.random.key(t))
        found.append((before, float(last.reward), bool(last.terminated), bool(last.truncated)))
    assert found == expected


def factory(name: str = "x", env: str = "z", **options: str) -> Any:
    assert (name, env, options) == ("y", "w", {"config": "v", "factory": "u", "self": "t", "options": "s"})
    return registry.make("point_room", episode_length=5)


def test_options_may_have_any_name() -> None:
    options = option_values(["name=y", "env=w", "config=v", "factory=u", "self=t", "options=s"])
    built = registry.make(f"{__name__}:factory", **options)
    assert built.spec.episode_length == 5
    assert built.settings["environment"] == {**options, "env": f"{__name__}:factory"}, "the record finds it again"
    with pytest.raises(ValueError, match=r"gym:Pendulum-v1 raised TypeError when it was created: .*'name'"):
        registry.make("gym:Pendulum-v1", name="y")
