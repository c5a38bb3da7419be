"""The words for a mesh."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rookery.distributed import mesh


@pytest.mark.parametrize(
    ("platforms", "processes", "text"),
    [
        (["cpu"], [0], "1 of 2 cpu devices"),
        (["cpu", "cpu"], [0, 0], "2 cpu devices"),
        (["cuda"], [0], "1 cuda device"),  # described, not there
        (["cuda", "cuda"], [0, 1], "2 cuda devices of 2 processes"),
    ],
)
def test_a_mesh_as_text(platforms: list[str], processes: list[int], text: str) -> None:
    devices = [SimpleNamespace(platform=p, process_index=i) for p, i in zip(platforms, processes, strict=True)]
    over: Any = SimpleNamespace(devices=np.asarray(devices))
    assert mesh.describe(over) == text
