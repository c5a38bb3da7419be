"""How often a perturbation of each hyper-parameter ends on a bound of its domain: `python -m benchmarks.bounds`.

Each evolved field of each agent's space is drawn from its domain and perturbed with PBT's defaults: multiplied by 0.8
or 1.25 on its scale, or resampled with probability 0.25. A field that often ends on a bound cannot evolve: its domain
is too narrow, or has the wrong scale.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rookery import hyperparams
from rookery.agents import ppo_settings
from rookery.agents.sac import SPACE as SAC_SPACE
from rookery.agents.skills.diayn import space as diayn_space
from rookery.agents.td3 import SPACE as TD3_SPACE
from rookery.hyperparams import Space
from rookery.populations.config import PbtConfig

MEMBERS, GENERATIONS = 10_000, 20
SPACES = {"sac": SAC_SPACE, "td3": TD3_SPACE, "ppo": ppo_settings.SPACE, "diayn": diayn_space(SAC_SPACE)}


def on_a_bound(space: Space, generations: int, resample: float, members: int = MEMBERS) -> dict[str, float]:
    """Share of members, name -> [0, 1], whose value is on a bound after `generations` perturbations."""
    change = partial(hyperparams.perturb, space, factors=PbtConfig().perturb_factors, resample_probability=resample)

    def lineage(key: jax.Array) -> jax.Array:
        draw_key, *keys = jax.random.split(key, 1 + generations)
        hyper, _ = jax.lax.scan(
            lambda hyper, key: (change(hyper, key), ()), hyperparams.sample(space, draw_key), jnp.stack(keys)
        )
        return jnp.stack([getattr(hyper, name) for name in space.domains])

    values = np.asarray(jax.jit(jax.vmap(lineage))(jax.random.split(jax.random.key(0), members)))
    bounds = np.asarray([(domain.low, domain.high) for domain in space.domains.values()], np.float32)
    ends = (values <= bounds[:, 0]) | (values >= bounds[:, 1])
    return dict(zip(space.domains, ends.mean(axis=0).tolist(), strict=True))


def main() -> None:
    """Print a table of all fields."""
    resample = PbtConfig().resample_probability
    columns = f"first perturbation | perturbation {GENERATIONS} | {GENERATIONS}, never resampled"
    print(f"| agent | field | domain | {columns} |")
    print("|---|---|---|---|---|---|")
    for agent, space in SPACES.items():
        shares = [on_a_bound(space, *how) for how in ((1, 0.0), (GENERATIONS, resample), (GENERATIONS, 0.0))]
        for name, domain in space.domains.items():
            scale = f"{type(domain).__name__}({domain.low:g}, {domain.high:g})"
            print(
                f"| {agent} | {name} | {scale} | " + " | ".join(f"{100 * share[name]:.1f} %" for share in shares) + " |"
            )


if __name__ == "__main__":
    main()
