# %% [markdown]
# # Ask and tell: you evaluate, Rookery searches
#
# A robot, a slow simulator or a person cannot run inside a compiled program. `rookery.qd.Search` asks for solutions to
# try, and takes their results: it keeps the best solution of each *kind*, so that the outcome is a repertoire, not one
# optimum.
#
# Here the "robot" is a function of NumPy. It could as well be a queue of real experiments. The search itself takes
# milliseconds, so it needs neither a GPU nor several cores.

# %% [markdown]
# ## Install
#
# Rookery is not on the package index yet. Clone its repository, and start Jupyter in the folder `notebooks` of the
# clone: the cell below installs the package from there.

# %%
# %pip install -q -e ..

# %%
import os

import matplotlib.pyplot as plt
import numpy as np

import rookery

SMALL = "ROOKERY_SMALL" in os.environ  # seconds instead of a minute, for the test of this notebook

# %% [markdown]
# ## The robot
#
# A catapult has an angle (degrees), a tension (newtons) and a release time (milliseconds). What it does is where the
# stone lands and how high it flies: two numbers, the **descriptor**. What is good is little wear: the **fitness**. Some
# settings break the catapult, and have no result at all.


# %%
def throw(solutions):
    """Fitness `[B]` and descriptors `[B, 2]`, distance and height in metres, of settings `{name: [B]}`."""
    angle = np.radians(solutions["angle"])
    speed = 0.4 * np.sqrt(solutions["tension"]) * np.exp(-(((solutions["release"] - 40.0) / 30.0) ** 2))
    distance = speed**2 * np.sin(2 * angle) / 9.81
    height = (speed * np.sin(angle)) ** 2 / (2 * 9.81)
    wear = solutions["tension"] / 1000.0 + np.abs(solutions["release"] - 60.0) / 60.0
    broke = solutions["tension"] * np.cos(angle) > 850.0
    return np.where(broke, np.nan, -wear), np.stack([distance, height], axis=1)


# %% [markdown]
# ## The search
#
# Each setting has bounds of its own. `NaN` says that a solution failed.

# %%
lower = {"angle": np.float32(5), "tension": np.float32(50), "release": np.float32(0)}
upper = {"angle": np.float32(85), "tension": np.float32(1000), "release": np.float32(100)}
search = rookery.qd.Search(
    lower,
    upper,
    descriptor=[(0, 16), (0, 8)],
    batch_size=32,
    grid=(8, 8) if SMALL else (24, 24),
    iso_sigma=0.05,
    line_sigma=0.3,
    qd_offset=-2.0,
    name="catapult",
    run_dir="runs/catapult",
    overwrite=True,
)
coverage = []
for _ in range(3 if SMALL else 150):
    settings = search.ask()
    search.tell(*throw(settings))
    coverage.append(search.metrics["coverage"])
elites = search.elites()
print(f"{len(elites.fitnesses)} ways to throw, coverage {coverage[-1]:.0f} %")

# %% [markdown]
# Each point is a throw that the catapult can make, with the settings that wear it least.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
points = left.scatter(*elites.descriptors.T, c=elites.fitnesses, s=14)
left.set(xlabel="distance (m)", ylabel="height (m)")
figure.colorbar(points, ax=left, label="fitness (minus the wear)")
right.plot(coverage)
right.set(xlabel="batch", ylabel="coverage (%)")
plt.show()

# %% [markdown]
# ## A target
#
# A repertoire answers questions that were not asked before: which settings throw six metres far and two high?

# %%
elite = rookery.nearest(elites, (6.0, 2.0))
print({name: round(float(value), 1) for name, value in elite.genotype.items()}, "lands at", elite.descriptor.round(1))

# %% [markdown]
# ## Stop and continue
#
# Every result was recorded as it came. A process that dies between `ask` and `tell` asks for the same settings again.

# %%
tonight = search.ask()
search.close()

with rookery.qd.Search.load("runs/catapult") as search:
    again = search.ask()
    print("the same settings:", all(np.array_equal(tonight[name], again[name]) for name in tonight))
    search.tell(*throw(again))
    search.report()

# %% [markdown]
# The page `runs/catapult/report.html` has the repertoire after each checkpoint and the curves of the search, as for any
# other run. The guide `docs/guides/evaluate_outside.md` shows several processes, a robot and a person.
