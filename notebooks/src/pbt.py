# %% [markdown]
# # What Population Based Training does
#
# Reinforcement learning depends on its hyper-parameters, and good values change during training. A grid search pays
# for every bad value with a whole run, and then keeps one constant setting. **Population Based Training** (PBT,
# Jaderberg 2017, arXiv:1711.09846) searches *while* it trains:
#
# 1. **Train** a population of members at the same time, each with its own hyper-parameters.
# 2. **Evaluate** all of them.
# 3. **Exploit**: the worst members are replaced by copies of the best ones: networks, optimiser, everything.
# 4. **Explore**: each copy changes the hyper-parameters that it inherited, and training goes on.
#
# The cost is that of training the population once. The result is a good policy and a *schedule* of hyper-parameters,
# which no single constant setting is. We train the same members twice, without and with steps 3 and 4, and compare.

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
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML, display

import rookery

SMALL = "ROOKERY_SMALL" in os.environ  # seconds instead of minutes, for the test of this notebook
POPULATION = 4 if SMALL else 8
GENERATIONS = 4 if SMALL else 40

# %% [markdown]
# ## All cores
#
# On a CPU each core becomes a device, and the members are divided over the devices. This must be said before JAX
# starts; on a GPU it has no effect.

# %%
rookery.distributed.use_cores(POPULATION)
print(jax.devices())

# %% [markdown]
# ## A search space that is too wide on purpose
#
# Hyper-parameters have scales: a learning rate of 1e-3 is ten times 1e-4, so rates are drawn and changed on a
# logarithmic scale. `rookery.choose` takes bounds for what evolves; everything else keeps one value. From these
# bounds some draws are bad, as they are when one meets a new task.

# %%
env = rookery.make("point_trap")
agent = rookery.sac(env.spec, rookery.agents.SacConfig(hidden_sizes=(8,) if SMALL else (32, 32)))
learner_config = rookery.learners.OffPolicyConfig(
    num_envs=4 if SMALL else 10,
    steps_per_generation=40 if SMALL else 250,
    batch_size=8 if SMALL else 64,
    warmup_steps=20 if SMALL else 250,
    eval_episodes=2 if SMALL else 4,
)
learner = rookery.off_policy(agent, env, learner_config)

fixed = dict.fromkeys(agent.space.domains, "fixed")
wide = {"policy_lr": (1e-6, 1e-2), "critic_lr": (1e-6, 1e-2), "discount": (0.5, 0.999)}
space = rookery.choose(agent.space, **(fixed | wide))
for name, domain in space.domains.items():
    print(f"{name:10} {domain}")

# %% [markdown]
# ## The two programs
#
# They differ in one word. `exploit="none"` is random search: each member keeps what it drew. With PBT, every 1,000
# environment steps of a member (the *exploit interval*) the worst quarter is replaced by copies of the best quarter,
# whose hyper-parameters are multiplied by 0.8 or 1.25 on their scales, or drawn anew with probability 0.25. The seed
# is the same, so that both populations begin with the same networks and the same hyper-parameters.

# %%
interval = 40 if SMALL else 1_000
search = rookery.pbt(learner, space, POPULATION, exploit="none")
pbt = rookery.pbt(learner, space, POPULATION, exploit="truncation", exploit_interval=interval)

options = {"seed": 0, "generations": GENERATIONS, "overwrite": True, "quiet": True}
rookery.run(search, run_dir="runs/search", **options)
rookery.run(pbt, run_dir="runs/pbt", **options)

# %% [markdown]
# ## Fitness: the median is the difference
#
# Every grey line is a slot of the population. In random search a bad draw stays bad until the end, and its share of
# the computation is lost. In PBT a slot that falls behind continues as a copy of a good member: its line jumps up.
# The *best* members of the two are often alike, since one draw among eight is likely to be good enough for a small
# task; the median shows what happens to the others.

# %%
runs = {"random search": rookery.load("runs/search"), "PBT": rookery.load("runs/pbt")}
figure, panels = plt.subplots(1, 2, figsize=(11, 3.5), sharey=True, layout="constrained")
for axes, (name, run) in zip(panels, runs.items(), strict=True):
    fitness = run.lineage.fitness  # [generations, members]
    number = np.arange(1, len(fitness) + 1)
    axes.plot(number, fitness, color="#8fa7b3", linewidth=1)
    axes.plot(number, np.median(fitness, axis=1), color="#1b3a4b", linewidth=2.5, label="median")
    axes.plot(number, fitness.max(axis=1), color="#b33a00", linewidth=1.5, label="best")
    axes.set(title=name, xlabel="generation", xlim=(0.5, GENERATIONS + 0.5))
    axes.legend(frameon=False, loc="lower right")
panels[0].set_ylabel("mean return")
plt.show()
for name, run in runs.items():
    last = run.lineage.fitness[-1]
    print(f"{name:13}  best {last.max():7.1f}  median {np.median(last):7.1f}  worst {last.min():7.1f}")

# %% [markdown]
# ## The lineage
#
# `lineage.parents[g, i]` is the member of the generation before that slot `i` continues: itself if it survived,
# another if it was replaced. Each orange line below is a copy. The thick line follows the best member of the last
# generation back to its first ancestor. It usually changes slots on the way: what won is no single member that did
# well throughout, but a chain of copies, each the best at its time.

# %%
lineage = runs["PBT"].lineage
best = lineage.ancestors()  # the slot of the best member's ancestor in each generation
figure, axes = plt.subplots(figsize=(11, 2.8), layout="constrained")
for g in range(1, len(lineage.parents)):
    for slot, parent in enumerate(lineage.parents[g]):
        copied = parent != slot
        axes.plot([g, g + 1], [parent, slot], color="#b33a00" if copied else "#c8d3da", linewidth=1.5 if copied else 1)
axes.plot(np.arange(1, len(best) + 1), best, color="#00798c", linewidth=3)
axes.set(xlabel="generation", ylabel="slot of the population", yticks=range(POPULATION), xlim=(0.5, GENERATIONS + 0.5))
axes.invert_yaxis()
plt.show()
copies = (lineage.parents[1:] != np.arange(POPULATION)).sum()
print(f"{copies} copies; the best member's ancestors were in the slots {list(dict.fromkeys(best.tolist()))}")

# %% [markdown]
# ## The hyper-parameters that survive
#
# Points are what each member trained with, orange for the best of its generation and grey for the worst. The line is
# the best member's **schedule**. Watch which points disappear: values that do not learn are replaced within a few
# selections, and the population then refines what is left, by steps of 0.8 and 1.25. Values that never mattered
# drift.

# %%
ranks = lineage.fitness.argsort(axis=1).argsort(axis=1) / (POPULATION - 1)
number = np.arange(1, len(best) + 1)
figure, panels = plt.subplots(1, 3, figsize=(13, 3.5), layout="constrained")
colours = plt.matplotlib.colors.LinearSegmentedColormap.from_list("ranks", ["#a3b3bc", "#cb8a50", "#b33a00"])
for axes, name in zip(panels, wide, strict=True):
    values = 1 - lineage.hyper[name] if name == "discount" else lineage.hyper[name]
    axes.scatter(np.repeat(number, POPULATION), values, c=ranks, cmap=colours, s=12)
    axes.plot(number, values[np.arange(len(best)), best], color="#00798c", linewidth=2)
    title = "1 - discount" if name == "discount" else name
    axes.set(title=title, xlabel="generation", yscale="log", xlim=(0.5, GENERATIONS + 0.5))
plt.show()

# %% [markdown]
# A schedule can be used again: `lineage.schedule()` has it, and `rookery train sac --replay-schedule runs/pbt` trains
# a new agent with it.
#
# ## What to choose
#
# - **Population size**: PBT draws its first values at random, and everything later descends from those that survive.
#   Eight is small; 16 to 32 are usual.
# - **Exploit interval**: long enough that a changed hyper-parameter shows in the fitness, short enough for many
#   selections. Too short, and luck in one evaluation decides; `eval_episodes` and `smooth=3` make the fitness less
#   noisy.
# - **Replaced share**: with the default quarter the population keeps variety. With one half it converges fast, also
#   to a local optimum.
# - `perturb="pb2"` proposes values by a Gaussian process in place of random factors, which helps small populations.
#
# ## What this notebook does not show
#
# One seed of one task shows how the method works, not that it is better. Results differ between seeds: compare
# several runs of each method with `rookery compare`, which gives intervals. And PBT is greedy: it copies what is best
# *now*. On this task all members end at the wall in front of the goal (a return of about -158), because every way
# around it is worse at first. `repertoire.ipynb` continues from here.
#
# ## The report page of the PBT run


# %%
def show_page(path, height=900):
    """The page in a frame; as `srcdoc`, since hosted notebooks do not serve local files."""
    page = html.escape(Path(path).read_text())
    return HTML(f'<div><iframe srcdoc="{page}" width="100%" height="{height}" style="border: 0"></iframe></div>')


display(show_page("runs/pbt/report.html"))
