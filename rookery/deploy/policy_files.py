"""Files of an exported policy: its description, `policy.json`, and scripts that run it without this library."""

import inspect
from typing import Any

import jax
import numpy as np

from rookery import normalize
from rookery.deploy import interface
from rookery.deploy.policy import Policy
from rookery.envs.base import DescriptorSpec
from rookery.envs.wrappers.skills import enumerate_skills
from rookery.storage import run_dir
from rookery.versions import versions

FORMAT = 1  # version of `policy.json`; incremented whenever an older reader would misread a newer file


def describe(policy: Policy) -> dict[str, Any]:
    """The content of `policy.json`, as JSON values; for a team, sizes are per agent."""
    spec, settings = policy.spec, policy.origin.built.program.settings
    descriptor, skill = spec.descriptor, policy.skill
    about = policy.interface
    return {
        "format": FORMAT,
        "task": spec.name,
        "kind": policy.origin.spec.kind.name,
        "generation": policy.origin.generation,
        "versions": {"run": run_dir.open_existing(policy.origin.path).versions, "export": versions(("rookery", "jax"))},
        "precision": {"run": settings.get("precision", "auto"), "export": "float32"},
        "cell": policy.cell,
        "member": policy.member,
        "skill": None if skill is None else {"number": skill, "vector": _skill(policy)},
        "fitness": policy.fitness,
        "objective": policy.evaluator.config.objective or (None if policy.evaluator.intrinsic_reward else "return"),
        "descriptor": descriptor and policy.descriptor and _descriptor(descriptor, policy.descriptor),
        "inputs": {name: ["batch", *shape] for name, shape in policy.inputs.items()},
        "outputs": {name: ["batch", *shape] for name, shape in policy.outputs.items()},
        "observation": {
            **about["observation"],
            "shape": policy.spec.observation_shape,
            "mask": policy.mask_size,
            "normalised": _normalisation(policy),
        },
        "action": about["action"],
        "team": about["team"],
        "hidden_sizes": (settings.get("agent") or settings.get("policy") or {}).get("hidden_sizes"),
    }


def _descriptor(spec: DescriptorSpec, value: tuple[float, ...]) -> dict[str, Any]:
    return {"meaning": spec.meaning, "value": value, "lower": spec.lower, "upper": spec.upper}


def _skill(policy: Policy) -> list[float]:
    assert policy.spec.skill is not None
    return enumerate_skills(policy.spec.skill)[policy.skill or 0].tolist()


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
    functions = inspect.getsource(interface).partition('"""\n\nimport numpy as np\n')[2].strip()
    parts = {"docstring": _docstring(policy), "functions": functions}
    made = {"act.py": ("jax, flatbuffers and numpy, or onnxruntime and numpy", _LOAD)}
    made |= {"act_onnx.py": ("onnxruntime and numpy", _LOAD_ONNX)} if onnx else {}
    return {name: _SCRIPT.format(needs=needs, load=load, **parts) for name, (needs, load) in made.items()}


def _docstring(policy: Policy) -> str:
    """The docstring of the script's function."""
    shapes = {name: f"[{', '.join(map(str, shape))}]" for name, shape in {**policy.inputs, **policy.outputs}.items()}
    memory = (
        "\n\n    Returns the action and the memory, which the next step takes; None in the first step of an episode."
    )
    return (
        "The action for an observation as the environment gives it, or for its features "
        f"{shapes['observation']};\n    also for a batch of them, `[batch, ...]`.{memory if policy.memory_size else ''}"
    )


_SCRIPT = '''"""The policy of policy.json, without the library that trained it; needs {needs}."""

import json
from pathlib import Path

import numpy as np

_FOLDER = Path(__file__).parent
_ABOUT = json.loads((_FOLDER / "policy.json").read_text())


def act(observation, memory=None):
    """{docstring}
    """
    features, shape = encode(_ABOUT, observation), _ABOUT["inputs"]["observation"][1:]
    is_one = features.ndim == len(shape)
    inputs = [features[None] if is_one else features]
    if "memory" in _ABOUT["inputs"]:
        size = (len(inputs[0]), *_ABOUT["inputs"]["memory"][1:])
        inputs.append(np.zeros(size, np.float32) if memory is None else np.asarray(memory, np.float32).reshape(size))
    action, *memory = (output[0] if is_one else output for output in _policy(*inputs))
    action = decode(_ABOUT, action)
    return (action, *memory) if memory else action


{functions}


{load}

if __name__ == "__main__":
    print(act(np.zeros(_ABOUT["inputs"]["observation"][1:], _ABOUT["observation"]["type"])))
'''

_LOAD_ONNX = '''def _load_onnx():
    """The ONNX model as a function of batches."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only: the converter leaves unused constants, which cause warnings
    path = str(_FOLDER / "policy.onnx")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda *inputs: session.run(None, dict(zip(_ABOUT["inputs"], inputs)))


_policy = _load_onnx()
'''

_LOAD = _LOAD_ONNX.replace(
    "_policy = _load_onnx()\n",
    '''def _load():
    """The function of policy.stablehlo, or the ONNX model where jax is not installed."""
    try:
        import jax
        from jax import export

        call = jax.jit(export.deserialize(bytearray((_FOLDER / "policy.stablehlo").read_bytes())).call)
    except ImportError:
        if not (_FOLDER / "policy.onnx").exists():
            raise
        return _load_onnx()
    return lambda *inputs: [np.asarray(output) for output in jax.tree.leaves(call(*inputs))]


_policy = _load()
''',
)
