"""Encoding of a page's data as compact JSON that is safe inside a `<script>` element."""

import base64
import json
import math
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from rookery.report.statistics import Estimate

JsonObject = dict[str, Any]
"""Part of a page's data, which the scripts in `web/` read: JSON values, arrays and numbers by name."""
_TYPES = {"f": "f4", "i": "i4", "u": "u1", "b": "u1"}
_STEPS, _NAN = 2**15 - 1, -(2**15)  # int16: the largest value, and the code of NaN


class Packed(TypedDict):
    """An encoded array; `unpack` in `web/numbers.js` decodes it."""

    type: str
    shape: list[int]
    base64: str
    scale: NotRequired[float]
    offset: NotRequired[float]


def packed(values: npt.ArrayLike, precise: bool = False) -> Packed:
    """Encode an array as `{type, shape, base64}`: float32 (float64 if `precise`), int32, or uint8 for booleans."""
    array = np.asarray(values)
    kind = "f8" if precise else _TYPES[array.dtype.kind]
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        return _packed(array.astype(f"<{kind}"), kind)


def packed_fields(estimate: Estimate[np.ndarray]) -> dict[str, Packed]:
    """Encode the value and the interval of a curve as float32: name -> array."""
    return {name: packed(np.asarray(values, float)) for name, values in estimate._asdict().items()}


def rounded(values: npt.ArrayLike) -> Packed:
    """Encode an array as int16 between its minimum and maximum, with `scale` and `offset`: half the size of float32.

    NaN is preserved. The error is at most 1 mm for a range of 100 m.
    """
    array = np.asarray(values, float)
    finite = array[np.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    scale = (high - low) / (2 * _STEPS) or 1.0
    offset = low + _STEPS * scale
    steps = np.round((np.clip(np.nan_to_num(array), low, high) - offset) / scale)
    codes = np.where(np.isnan(array), _NAN, steps).astype("<i2")
    return {**_packed(codes, "i2"), "scale": scale, "offset": offset}


def _packed(array: np.ndarray, kind: str) -> Packed:
    return {"type": kind, "shape": list(array.shape), "base64": base64.b64encode(array.tobytes()).decode()}


def to_json(value: object) -> str:
    """JSON for a `<script>`: characters that could start a tag are escaped; numbers that are not finite become null."""
    text = json.dumps(_plain(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
