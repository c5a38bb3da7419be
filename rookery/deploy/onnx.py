"""A policy as an ONNX model: the only file that names the converter and its runtime, both of the extra `onnx`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from rookery.versions import version


class NoOnnxError(Exception):
    """There is no ONNX model of a policy; the message is a clause that says why."""


def convert(act: Callable[..., Any], inputs: Mapping[str, tuple[int, ...]], outputs: Sequence[str]) -> bytes:
    """A function of one row as a model of batches of any size.

    Args:
      act: takes the inputs in their order, float32, and gives an array, or a tuple of them.
      inputs: name -> shape of one row.
      outputs: names.

    Raises:
      NoOnnxError: the extra is not installed, or the converter does not know an operation.
    """
    try:
        import jax2onnx  # pyright: ignore[reportMissingImports]
        import onnxruntime  # noqa: F401  # pyright: ignore[reportMissingImports]  # who else would check the model?
    except ImportError as error:
        raise NoOnnxError(f"{error.name} is not installed; pip install 'rookery[onnx]'") from error
    rows = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in inputs.values()]
    # Traced before the converter sees it: its own rules for flax's layers cannot be mapped over a batch.
    traced = jaxpr_as_fun(jax.make_jaxpr(act)(*rows))
    batches = [("batch", *shape) for shape in inputs.values()]
    try:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            model: Any = jax2onnx.to_onnx(
                jax.vmap(traced), batches, model_name="policy", input_names=list(inputs), output_names=list(outputs)
            )
    except Exception as error:
        told = (str(error).splitlines() or [""])[0]
        raise NoOnnxError(
            f"jax2onnx {version('jax2onnx')} cannot convert it ({type(error).__name__}: {told:.200})"
        ) from error
    return model.SerializeToString()


def act(model: bytes, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a model does, name -> `[batch, ...]`.

    Raises:
      NoOnnxError: the runtime refuses it.
    """
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return {name: np.asarray(given) for name, given in zip(names, session.run(None, dict(inputs)), strict=True)}
    except Exception as error:
        told = (str(error).splitlines() or [""])[0]
        raise NoOnnxError(f"onnxruntime refuses it ({type(error).__name__}: {told:.200})") from error
