"""What an exported policy says of itself: `policy.json`, and the scripts that use it without this library."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rookery import normalize
from rookery.deploy.policy import Policy
from rookery.envs.base import Team
from rookery.envs.wrappers.skills import listed
from rookery.experiments.kinds import kind_of
from rookery.storage import run_dir
from rookery.versions import versions

FORMAT = 1
"""Of `policy.json`; raised whenever an older reader would misread a newer file."""


def describe(policy: Policy) -> dict[str, Any]:
    """All that a user of the files must know, as JSON values; sizes are those of one agent of a team."""
    spec, config = policy.spec, policy.origin.config
    told, skill = spec.descriptor, policy.skill
    return {
        "format": FORMAT,
        "task": spec.name,
        "kind": kind_of(config),
        "generation": policy.origin.generation,
        "versions": {"run": run_dir.open_existing(policy.origin.path).versions, "export": versions(("rookery", "jax"))},
        "cell": policy.cell,
        "member": policy.member,
        "skill": None if skill is None else {"number": skill, "vector": _skill(policy)},
        "fitness": policy.fitness,
        "descriptor": told
        and policy.descriptor
        and {"meaning": told.meaning, "value": policy.descriptor, "lower": told.lower, "upper": told.upper},
        "inputs": {name: ["batch", *shape] for name, shape in policy.inputs.items()},
        "outputs": {name: ["batch", *shape] for name, shape in policy.outputs.items()},
        "observation": {
            "size": policy.observation_size,
            "mask": spec.action_size if spec.masked else 0,
            "normalised": _normalisation(policy),
        },
        "action": _action(policy),
        "team": spec.team and _team(policy, spec.team),
        "hidden_sizes": (config.agent if hasattr(config, "agent") else config.policy).hidden_sizes,  # pyright: ignore[reportAttributeAccessIssue]
    }


def _skill(policy: Policy) -> list[float]:
    assert policy.spec.skill is not None
    return listed(policy.spec.skill)[policy.skill or 0].tolist()


def _team(policy: Policy, team: Team) -> dict[str, Any]:
    """In the order of the axis; observations and actions that are smaller than the largest end in padding."""
    sizes = [size - policy.index_size for size in team.observation_sizes]
    return {"names": team.names, "observation_sizes": sizes, "action_sizes": team.action_sizes}


def _action(policy: Policy) -> dict[str, Any]:
    size = policy.spec.action_size
    if policy.spec.discrete:
        return {"kind": "discrete", "type": "int32", "size": size, "low": 0, "high": size - 1}
    return {"kind": "continuous", "type": "float32", "size": size, "low": -1.0, "high": 1.0}


def _normalisation(policy: Policy) -> dict[str, Any] | None:
    """What the files do to the first numbers of an observation by themselves: `(observation - mean) / std`, clipped.

    Of independent agents each its own, `[I, O]`. None where they do nothing.
    """
    statistics = policy.genotype.normalizer
    if statistics is None or not (np.asarray(statistics.count) > 1.0).any():
        return None
    deviation = normalize.deviation if statistics.mean.ndim == 1 else jax.vmap(normalize.deviation)
    own = slice(policy.index_size, None)
    mean, std = (np.asarray(side)[..., own].tolist() for side in (statistics.mean, deviation(statistics)))
    return {"mean": mean, "std": std, "limit": normalize.LIMIT}


def scripts(policy: Policy, onnx: bool) -> dict[str, str]:
    """Name of a file -> a script of its own, which `import` serves as well."""
    names = list(policy.inputs)
    shapes = [(1, *shape) for shape in policy.inputs.values()]
    parts = {
        "names": ", ".join(names),
        "told": _told(policy),
        "cast": ", ".join(f"np.asarray({name}, np.float32)" for name in names),
        "fed": ", ".join(f'"{name}": np.asarray({name}, np.float32)' for name in names),
        "zeros": ", ".join(f"np.zeros({shape})" for shape in shapes),
        "first": "" if policy.memory_size else "[0]",
    }
    return _filled({"act.py": _ACT} | ({"act_onnx.py": _ACT_ONNX} if onnx else {}), parts)


def _filled(templates: Mapping[str, str], parts: Mapping[str, str]) -> dict[str, str]:
    return {name: template.format(**parts) for name, template in templates.items()}


def _told(policy: Policy) -> str:
    """A docstring of one line, or of three."""
    shapes = {name: f"[{', '.join(['batch', *map(str, shape)])}]" for name, shape in policy.inputs.items()}
    action = f"[{', '.join(['batch', *map(str, policy.outputs['action'])])}]"
    values = f"int32 in 0..{policy.spec.action_size - 1}" if policy.spec.discrete else "in [-1, 1]"
    told = f"Observations {shapes['observation']} -> actions {action}, {values}."
    if not policy.memory_size:
        return told
    return (
        f"{told}\n\n    A memory {shapes['memory']} goes in and comes out beside them: zeros in an episode's first\n"
        "    step, then what the step before gave.\n    "
    )


_ACT = '''"""The policy of policy.json, without the library that trained it; needs jax, flatbuffers and numpy."""

from pathlib import Path

import jax
import numpy as np
from jax import export

_policy = jax.jit(export.deserialize(bytearray(Path(__file__).with_name("policy.stablehlo").read_bytes())).call)


def act({names}):
    """{told}"""
    return jax.tree.map(np.asarray, _policy({cast}))


if __name__ == "__main__":
    print(act({zeros}))
'''

_ACT_ONNX = '''"""The policy that policy.json describes, by ONNX; needs onnxruntime and numpy."""

from pathlib import Path

import numpy as np
import onnxruntime

_options = onnxruntime.SessionOptions()
_options.log_severity_level = 3  # errors alone: the converter leaves constants behind that nobody uses
_path = str(Path(__file__).with_name("policy.onnx"))
_policy = onnxruntime.InferenceSession(_path, _options, providers=["CPUExecutionProvider"])


def act({names}):
    """{told}"""
    return _policy.run(None, {{{fed}}}){first}


if __name__ == "__main__":
    print(act({zeros}))
'''
