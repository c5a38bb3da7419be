"""Files of an exported policy: its description, `policy.json`, and scripts that run it without this library."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rookery import normalize
from rookery.deploy.policy import Policy
from rookery.envs.base import DescriptorSpec, Team
from rookery.envs.wrappers.skills import enumerate_skills
from rookery.storage import run_dir
from rookery.versions import versions

FORMAT = 1
"""Version of `policy.json`; incremented whenever an older reader would misread a newer file."""


def describe(policy: Policy) -> dict[str, Any]:
    """The content of `policy.json`, as JSON values; for a team, sizes are per agent."""
    spec, settings = policy.spec, policy.origin.built.program.settings
    descriptor, skill = spec.descriptor, policy.skill
    return {
        "format": FORMAT,
        "task": spec.name,
        "kind": policy.origin.spec.kind.name,
        "generation": policy.origin.generation,
        "versions": {"run": run_dir.open_existing(policy.origin.path).versions, "export": versions(("rookery", "jax"))},
        "cell": policy.cell,
        "member": policy.member,
        "skill": None if skill is None else {"number": skill, "vector": _skill(policy)},
        "fitness": policy.fitness,
        "descriptor": descriptor and policy.descriptor and _descriptor(descriptor, policy.descriptor),
        "inputs": {name: ["batch", *shape] for name, shape in policy.inputs.items()},
        "outputs": {name: ["batch", *shape] for name, shape in policy.outputs.items()},
        "observation": {
            "size": policy.observation_size,
            "type": policy.types["observation"].name,
            "shape": policy.spec.observation_shape,
            "mask": policy.mask_size,
            "normalised": _normalisation(policy),
        },
        "action": _action(policy),
        "team": spec.team and _team(spec.team),
        "hidden_sizes": (settings.get("agent") or settings.get("policy") or {}).get("hidden_sizes"),
    }


def _descriptor(spec: DescriptorSpec, value: tuple[float, ...]) -> dict[str, Any]:
    return {"meaning": spec.meaning, "value": value, "lower": spec.lower, "upper": spec.upper}


def _skill(policy: Policy) -> list[float]:
    assert policy.spec.skill is not None
    return enumerate_skills(policy.spec.skill)[policy.skill or 0].tolist()


def _team(team: Team) -> dict[str, Any]:
    """The agents in the order of the agent axis; smaller observations and actions are padded at the end."""
    return {"names": team.names, "observation_sizes": team.observation_sizes, "action_sizes": team.action_sizes}


def _action(policy: Policy) -> dict[str, Any]:
    size = policy.spec.action_size
    if policy.spec.discrete:
        return {"kind": "discrete", "type": "int32", "size": size, "low": 0, "high": size - 1}
    return {"kind": "continuous", "type": "float32", "size": size, "low": -1.0, "high": 1.0}


def _normalisation(policy: Policy) -> dict[str, Any] | None:
    """Normalisation that the exported policy applies to its observations: `(observation - mean) / std`, clipped.

    Mean and std are `[O]`, or `[I, O]` for independent agents; they cover the first O numbers of an observation. None
    without normalisation.
    """
    statistics = policy.genotype.normalizer
    if statistics is None or not (np.asarray(statistics.count) > 1.0).any():
        return None
    deviation = normalize.deviation if statistics.mean.ndim == 1 else jax.vmap(normalize.deviation)
    mean, std = (np.asarray(side).tolist() for side in (statistics.mean, deviation(statistics)))
    return {"mean": mean, "std": std, "limit": normalize.LIMIT}


def scripts(policy: Policy, onnx: bool) -> dict[str, str]:
    """Contents by file name of the scripts, each of which can also be imported as a module."""
    types = {name: f"np.{dtype.name}" for name, dtype in policy.types.items()}
    names = list(policy.inputs)
    parts = {
        "names": ", ".join(names),
        "docstring": _docstring(policy),
        "arrays": ", ".join(f"np.asarray({name}, {types[name]})" for name in names),
        "feeds": ", ".join(f'"{name}": np.asarray({name}, {types[name]})' for name in names),
        "zeros": ", ".join(f"np.zeros({(1, *shape)})" for shape in policy.inputs.values()),
        "first": "" if policy.memory_size else "[0]",
    }
    return _filled({"act.py": _ACT} | ({"act_onnx.py": _ACT_ONNX} if onnx else {}), parts)


def _filled(templates: Mapping[str, str], parts: Mapping[str, str]) -> dict[str, str]:
    return {name: template.format(**parts) for name, template in templates.items()}


def _docstring(policy: Policy) -> str:
    """Docstring of the script's function: one line, or three for a recurrent policy."""
    shapes = {name: f"[{', '.join(['batch', *map(str, shape)])}]" for name, shape in policy.inputs.items()}
    action = f"[{', '.join(['batch', *map(str, policy.outputs['action'])])}]"
    values = f"int32 in 0..{policy.spec.action_size - 1}" if policy.spec.discrete else "in [-1, 1]"
    pixels = ", uint8 in 0..255," if policy.types["observation"] == np.uint8 else ""
    summary = f"Observations {shapes['observation']}{pixels} -> actions {action}, {values}."
    if not policy.memory_size:
        return summary
    return (
        f"{summary}\n\n    The memory {shapes['memory']} is a second input and output: zeros in the first step of an\n"
        "    episode, then the memory returned by the step before.\n    "
    )


_ACT = '''"""The policy of policy.json, without the library that trained it; needs jax, flatbuffers and numpy."""

from pathlib import Path

import jax
import numpy as np
from jax import export

_policy = jax.jit(export.deserialize(bytearray(Path(__file__).with_name("policy.stablehlo").read_bytes())).call)


def act({names}):
    """{docstring}"""
    return jax.tree.map(np.asarray, _policy({arrays}))


if __name__ == "__main__":
    print(act({zeros}))
'''

_ACT_ONNX = '''"""The policy of policy.json, as an ONNX model; needs onnxruntime and numpy."""

from pathlib import Path

import numpy as np
import onnxruntime

_options = onnxruntime.SessionOptions()
_options.log_severity_level = 3  # errors only: the converter leaves unused constants, which cause warnings
_path = str(Path(__file__).with_name("policy.onnx"))
_policy = onnxruntime.InferenceSession(_path, _options, providers=["CPUExecutionProvider"])


def act({names}):
    """{docstring}"""
    return _policy.run(None, {{{feeds}}}){first}


if __name__ == "__main__":
    print(act({zeros}))
'''
