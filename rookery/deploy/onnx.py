"""Conversion of a policy to ONNX; the only module that imports the converter and its runtime, of the extra `onnx`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from rookery.versions import version


class NoOnnxError(Exception):
    """A policy has no ONNX model; the message is a clause that states the reason."""


def convert(
    act: Callable[..., Any],
    inputs: Mapping[str, tuple[int, ...]],
    types: Mapping[str, np.dtype],
    outputs: Sequence[str],
) -> bytes:
    """Convert a function of one row to an ONNX model for batches of any size.

    Args:
      act: takes the inputs, shapes of one row by name, in their order and returns an array or a tuple of arrays.
      inputs: shape of one row by input name.
      types: type by input name.
      outputs: names of the outputs.

    Raises:
      NoOnnxError: the extra is not installed, or the converter does not support an operation.
    """
    try:
        import jax2onnx  # pyright: ignore[reportMissingImports]
        import onnxruntime  # noqa: F401  # pyright: ignore[reportMissingImports]  # needed to verify the model
    except ImportError as error:
        raise NoOnnxError(f"{error.name} is not installed; pip install 'rookery[onnx]'") from error
    rows = [jax.ShapeDtypeStruct(shape, types[name]) for name, shape in inputs.items()]
    # Traced before the conversion: the converter's special rules for flax layers cannot be mapped over a batch.
    traced = jaxpr_as_fun(jax.make_jaxpr(act)(*rows))
    try:
        batches = [jax.ShapeDtypeStruct(("batch", *shape), types[name]) for name, shape in inputs.items()]
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            model: Any = jax2onnx.to_onnx(
                jax.vmap(traced), batches, model_name="policy", input_names=list(inputs), output_names=list(outputs)
            )
    except Exception as error:
        raise NoOnnxError(
            f"jax2onnx {version('jax2onnx')} cannot convert it ({type(error).__name__}: {_first_line(error):.200})"
        ) from error
    return model.SerializeToString()


def act(model: bytes, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a serialised model on inputs, `[batch, ...]` by name; a NoOnnxError if the runtime rejects it."""
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return {name: np.asarray(value) for name, value in zip(names, session.run(None, dict(inputs)), strict=True)}
    except Exception as error:
        raise NoOnnxError(f"onnxruntime rejects it ({type(error).__name__}: {_first_line(error):.200})") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
