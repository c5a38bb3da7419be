#!/usr/bin/env bash
# Make the virtual environment that the benchmarks run in: this package, editable, beside the peers it is measured
# against. They share one process, so that a ratio is measured in one run with one version of JAX.
#
#   benchmarks/peers.sh [FOLDER]     FOLDER is .venv-peers by default; PYTHON chooses the interpreter (>= 3.11)
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="${1:-$root/.venv-peers}"

"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --upgrade pip
"$folder/bin/python" -m pip install --quiet --editable "$root[bench]" "qdax>=0.5" "ribs>=0.8"
"$folder/bin/python" -m pip check
"$folder/bin/python" - <<'VERSIONS'
from importlib.metadata import version

names = ("rookery", "qdax", "ribs", "brax", "jax", "jaxlib", "flax", "optax")
print(" ".join(f"{name}=={version(name)}" for name in names))
VERSIONS
echo "run, for example: $folder/bin/python -m benchmarks.population_update --quick"
