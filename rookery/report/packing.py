"""What a page holds of numbers and words: JSON that cannot end the script that it stands in."""

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_TYPES = {"f": "f4", "i": "i4", "u": "u1", "b": "u1"}
_STEPS, _NOTHING = 2**15 - 1, -(2**15)  # of int16: the largest number, and what stands for NaN


def packed(values: npt.ArrayLike, precise: bool = False) -> dict[str, Any]:
    """An array as `{type, shape, base64}`: float32 (float64 if `precise`), int32, or bytes for truth values."""
    array = np.asarray(values)
    kind = "f8" if precise else _TYPES[array.dtype.kind]
    return _packed(array.astype(f"<{kind}"), kind)


def rounded(values: npt.ArrayLike) -> dict[str, Any]:
    """An array in half the bytes: int16 between its least and its greatest number, with `scale` and `offset` besides.

    NaN stays NaN; of what spans 100 m nothing is off by more than 1 mm.
    """
    array = np.asarray(values, float)
    finite = array[np.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    scale = (high - low) / (2 * _STEPS) or 1.0
    offset = low + _STEPS * scale
    steps = np.round((np.clip(np.nan_to_num(array), low, high) - offset) / scale)
    kept = np.where(np.isnan(array), _NOTHING, steps).astype("<i2")
    return {**_packed(kept, "i2"), "scale": scale, "offset": offset}


def _packed(array: np.ndarray, kind: str) -> dict[str, Any]:
    return {"type": kind, "shape": list(array.shape), "base64": base64.b64encode(array.tobytes()).decode()}


def to_json(value: Any) -> str:
    """JSON for a `<script>`: whatever a text holds, no tag begins in it; what is no finite number is null."""
    text = json.dumps(_plain(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
