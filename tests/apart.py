"""Runs a module in a separate process, which may have other virtual devices."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_module(module: str, timeout: float) -> dict[str, Any]:
    """The JSON object that a module prints; it shares the session's compilation cache.

    Args:
      timeout: seconds.
    """
    process = subprocess.run(
        [sys.executable, "-m", module],
        env=os.environ | {"JAX_COMPILATION_CACHE_DIR": os.environ["ROOKERY_TEST_CACHE"]},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
