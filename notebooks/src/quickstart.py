# %% [markdown]
# # Quickstart: train a population, look at it, use its best policy
#
# This notebook trains eight soft actor-critic (SAC) agents together, shows what they learned, and takes the best policy
# out of the run.

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
from IPython.display import HTML, Image, display

import rookery

SMALL = "ROOKERY_SMALL" in os.environ  # seconds instead of minutes, for the test of this notebook
RUN = "runs/quickstart"

# %% [markdown]
# ## All cores
#
# On a CPU each core becomes a device, and the members are divided over the devices. This must be said before JAX
# starts; on a GPU it has no effect.

# %%
rookery.distributed.use_cores(4 if SMALL else 8)
print(jax.devices())

# %% [markdown]
# ## A task
#
# `point_maze` is a point in a square. Its action is a velocity, its reward is minus the distance to a goal, and two
# walls are in between. `rookery.make` knows every task by name; `env.spec` says what an agent reads and does.

# %%
env = rookery.make("point_maze")
print("observation size", env.spec.observation_size, " action size", env.spec.action_size)
print("steps of an episode", env.spec.episode_length)

# %% [markdown]
# ## A program in three lines
#
# - The **agent** is an algorithm with its networks: here SAC with two hidden layers of 32 units.
# - The **learner** is the training loop of *one* member: it acts, stores transitions, updates the networks,
#   evaluates.
# - The **program** is the population method. `rookery.pbt` trains many members at once. After some steps the worst
#   members continue as copies of the best ones with changed hyper-parameters. (The notebook `pbt.ipynb` is about
#   that.)
#
# A **generation** is one round of training and evaluation of all members.

# %%
agent = rookery.sac(env.spec, hidden_sizes=(8,) if SMALL else (32, 32))
learner = rookery.off_policy(
    agent,
    env,
    num_envs=4 if SMALL else 10,
    steps_per_generation=40 if SMALL else 4_000,
    batch_size=8 if SMALL else 64,
    warmup_steps=20 if SMALL else 1_000,
    eval_episodes=4,
)
program = rookery.pbt(learner, population_size=4 if SMALL else 8, exploit_interval=40 if SMALL else 4_000)

# %% [markdown]
# ## Train
#
# The first lines say that XLA compiles the program: training, evaluation and selection of all members become a few
# compiled functions. That takes longer than the training of a small task, once. Then each line is a generation:
# environment steps per second, the fitness of the best and of the median member (the mean return of their evaluation
# episodes), and the time left. The output below is from two cores that also ran other programs.

# %%
result = rookery.run(program, seed=0, generations=3 if SMALL else 30, run_dir=RUN, overwrite=True)

# %% [markdown]
# The run directory has everything: settings, tables, checkpoints, figures. A run that is killed continues from there,
# bit for bit, with `resume`. In `curves.png` the grey lines are the members. Where one falls and jumps back up, it
# was replaced by a copy of a better one.

# %%
display(Image(f"{RUN}/curves.png", width=800))

# %% [markdown]
# ## Use the result
#
# `rookery.load` opens a run. `policy()` is the best member's policy as a compiled function from an observation to an
# action. We let it act for one episode.

# %%
run = rookery.load(RUN, program=program)
act = run.policy()
advance = jax.jit(env.step)
key = jax.random.key(1)
state, step = env.reset(key)
total = 0.0
for _ in range(env.spec.episode_length):
    state, step = advance(state, act(step.observation.features), key)
    total += float(step.reward)
    if step.terminated or step.truncated:
        break
print(f"return of one episode: {total:.1f}")

# %% [markdown]
# `render()` writes a film of an episode, and `evaluate` measures every member on fresh episodes. The best of many
# noisy evaluations is optimistic, so do this before you quote a number.

# %%
display(Image(str(run.render()), width=360))
fresh = run.evaluate(episodes=4 if SMALL else 50)
print("mean return of each member on fresh episodes:", fresh["returns"].mean(axis=1).round(1))

# %% [markdown]
# ## The report page
#
# Every run ends by writing `report.html`: one file without network access, which can be sent to others. Point at the
# lineage to see which member was copied from which, and at the hyper-parameters to see what each member trained with.


# %%
def show_page(path, height=900):
    """The page in a frame; as `srcdoc`, since hosted notebooks do not serve local files."""
    page = html.escape(Path(path).read_text())
    return HTML(f'<div><iframe srcdoc="{page}" width="100%" height="{height}" style="border: 0"></iframe></div>')


display(show_page(f"{RUN}/report.html"))

# %% [markdown]
# ## Next
#
# - The same run from a terminal: `docs/getting_started.md`; `rookery train pbt-sac --help` has every setting.
# - Where every first step towards the goal leads into a trap, all members end in it: `repertoire.ipynb` has a method
#   that gets out.
# - `pbt.ipynb` shows what the population does to the hyper-parameters.
# - Your own environment is a pair of functions: `docs/guides/own_environment.md`.
