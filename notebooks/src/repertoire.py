# %% [markdown]
# # Repertoires: many good policies that differ
#
# Reinforcement learning looks for one policy with the highest return. **Quality diversity** looks for a *repertoire*:
# for each kind of behaviour, the best policy that behaves so. That is useful where one needs alternatives, and it
# also finds what a greedy search misses, because ways that look worse at first are kept.
#
# Two ideas are enough:
#
# - A **descriptor** says what a policy does, as a few numbers: here, where its episode ends.
# - The space of descriptors is divided into **cells**. Each cell keeps its best policy, its **elite**.

# %% [markdown]
# ## Install
#
# Rookery is not on the package index yet. Clone its repository, and start Jupyter in the folder `notebooks` of the
# clone: the cell below installs the package from there.
#
# **GPUs**: on a machine with NVIDIA GPUs install `"..[cuda13]"` in place of `..`. The notebook then trains on all
# GPUs that divide the population, without another change (`docs/guides/gpu.md`).

# %%
# %pip install -q -e ..

# %%
import html
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML, Image, display

import rookery

SMALL = "ROOKERY_SMALL" in os.environ  # seconds instead of minutes, for the test of this notebook

# %% [markdown]
# ## All cores
#
# On a CPU each core becomes a device, and the members are divided over the devices. This must be said before JAX
# starts; on a GPU it has no effect.

# %%
rookery.distributed.use_cores(4 if SMALL else 10)
print(jax.devices())

# %% [markdown]
# ## MAP-Elites with a function
#
# A planar arm has eight joints. Its descriptor is the position of its end, its fitness prefers equal angles.
# **MAP-Elites** (Mouret and Clune 2015, arXiv:1504.04909) repeats: take random elites, vary them, evaluate, and put
# each result into the cell of its descriptor if it is better than what is there.


# %%
def reach(joints, key):
    """Fitness and descriptor of one arm; the key is for functions that are noisy."""
    del key
    angles = jnp.cumsum((2 * joints - 1) * jnp.pi)
    end = jnp.stack([jnp.mean(jnp.cos(angles)), jnp.mean(jnp.sin(angles))])
    return -jnp.std(joints), (end + 1) / 2


lower, upper = (0.0, 0.0), (1.0, 1.0)
scoring = rookery.qd.function_scoring(
    reach, lambda key: jax.random.uniform(key, (8,)), lower, upper, qd_offset=-0.5, bounds=(0.0, 1.0), name="arm"
)
cells = rookery.qd.grid((8, 8) if SMALL else (32, 32), lower, upper)
arms = rookery.map_elites(scoring, cells, rookery.qd.iso_line(scoring, batch_size=32 if SMALL else 512))
result = rookery.run(arms, generations=5 if SMALL else 100, run_dir="runs/arms", overwrite=True, quiet=True)

# %% [markdown]
# Each cell of the picture is an arm whose end is at that position; bright is a high fitness. **Coverage** is the
# share of cells that have an elite, and the **QD score** is the sum of their fitnesses (from an offset, so that no
# elite subtracts). The arm cannot reach the corners.

# %%
display(Image("runs/arms/repertoire.png", width=480))
last = result.history[-1]
print(f"coverage {float(last['coverage']):.1f} %, QD score {float(last['qd_score']):.1f}")
elite = rookery.nearest(rookery.qd.repertoire_of(result.state), (0.9, 0.5))
print("the arm nearest to (0.9, 0.5) ends at", np.asarray(elite.descriptor, np.float64).round(2))

# %% [markdown]
# ## A trap
#
# In `point_trap` a U-shaped wall is between the start and the goal. The reward is minus the distance to the goal, so
# the steepest way leads into the U and ends under its wall, with a return of about -156. The way around the wall has
# about -45, but its first steps lead away. A method that copies its best members stays in the trap (`pbt.ipynb`).
#
# **ME-PBT** (Pierrot and Flajolet 2023, arXiv:2303.12803) keeps a repertoire of *agents*: policy, critics,
# hyper-parameters. A few are trained by gradients, as members of a population. They also enter the repertoire, and
# bad members are replaced by agents from it. An agent that ends beside the wall is kept because it is the best that
# ends there, and its children may go on from there.

# %%
env = rookery.make("point_trap", **({"episode_length": 20} if SMALL else {}))
agent = rookery.td3(env.spec, rookery.agents.Td3Config(hidden_sizes=(8,) if SMALL else (64, 64)))
learner_config = rookery.learners.OffPolicyConfig(
    num_envs=4 if SMALL else 10,
    steps_per_generation=40 if SMALL else 1_000,
    batch_size=8 if SMALL else 64,
    warmup_steps=20 if SMALL else 200,
    eval_episodes=1,
)
learner = rookery.off_policy(agent, env, learner_config)
grid = rookery.qd.grid((4, 4) if SMALL else (16, 16), env.spec.descriptor.lower, env.spec.descriptor.upper)
program = rookery.me_pbt(learner, grid, population_size=4 if SMALL else 10, ga_population=4 if SMALL else 30)
result = rookery.run(program, seed=0, generations=3 if SMALL else 45, run_dir="runs/trap", overwrite=True, quiet=True)

# %% [markdown]
# The map shows where episodes end. The goal is at the top in the middle; the trap is around the middle. The curves
# show the fitness of the best elite, the coverage and the QD score.

# %%
display(Image("runs/trap/repertoire.png", width=480))
display(Image("runs/trap/curves.png", width=800))

# %% [markdown]
# The elites can be used like other policies. Here are the paths of some of them, chosen by where they should end,
# with the wall and the goal. A path may end elsewhere than its cell says, because this episode begins at another
# start state.

# %%
run = rookery.load("runs/trap", program=program)
advance = jax.jit(env.step)
figure, axes = plt.subplots(figsize=(5, 5), layout="constrained")
axes.plot([-0.5, -0.5, 0.5, 0.5], [-0.6, 0.0, 0.0, -0.6], color="#1b3a4b", linewidth=4)
axes.add_patch(plt.Circle((0.0, 0.75), 0.1, color="#e69f00", alpha=0.5))
for cell in ["best", (-0.8, 0.5), (0.8, 0.5), (-0.8, -0.5), (0.0, -0.1)]:
    act = run.policy(cell=cell)
    state, step = env.reset(jax.random.key(0))
    path = [step.descriptor]
    for t in range(env.spec.episode_length):
        state, step = advance(state, act(step.observation.features), jax.random.key(t))
        path.append(step.descriptor)
        if step.terminated or step.truncated:
            break
    axes.plot(*np.asarray(path).T, linewidth=2, label=str(cell))
axes.set(xlim=(-1, 1), ylim=(-1, 1), xlabel="x", ylabel="y", aspect="equal")
axes.legend(frameon=False, fontsize=8, loc="upper left")
plt.show()
print(f"best elite {float(result.history[-1]['max_fitness']):.1f}; above -150 means: out of the trap")

# %% [markdown]
# ## Read the numbers with care
#
# A cell keeps the *highest* of many noisy evaluations, so fitness and coverage of a repertoire are too high.
# `run.evaluate` repeats all elites on fresh start states and reports both; quote the corrected ones.

# %%
fresh = run.evaluate(episodes=2 if SMALL else 16)
for side in ("stored", "corrected"):
    print(
        f"{side:9} coverage {float(fresh[f'{side}/coverage']):5.1f} %  QD score {float(fresh[f'{side}/qd_score']):9.1f}"
    )

# %% [markdown]
# One run is not a comparison: `docs/evidence/quality_diversity.md` has PBT and ME-PBT on this trap over five seeds,
# with four times the steps.
#
# ## The report page
#
# The slider shows the repertoire after each generation: look at when the first cell behind the wall is filled, and
# from where.


# %%
def show_page(path, height=900):
    """The page in a frame; as `srcdoc`, since hosted notebooks do not serve local files."""
    page = html.escape(Path(path).read_text())
    return HTML(f'<div><iframe srcdoc="{page}" width="100%" height="{height}" style="border: 0"></iframe></div>')


display(show_page("runs/trap/report.html"))

# %% [markdown]
# ## Next
#
# - From a terminal: `rookery train me-pbt-td3 --env point_trap --grid 16 16`, and `rookery report RUN`, which also
#   records episodes: click a cell to see its policy.
# - Robots: `rookery train me-pbt-sac --env walker2d_uni`, where the descriptor is how often each foot is on the
#   ground (extra `brax`).
# - Other methods: CMA-MAE, PGA-ME, DCRL-ME and dominated novelty, in `docs/evidence/quality_diversity.md`.
