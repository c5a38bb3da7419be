#!/usr/bin/env bash
# Create the virtual environment of benchmarks.gpu_compile: this package with JAX's CUDA libraries. No driver is needed.
#
#   benchmarks/gpu.sh [FOLDER]     FOLDER is .venv-gpu by default; PYTHON chooses the interpreter (>= 3.11); about 4 GB
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="${1:-$root/.venv-gpu}"

"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --upgrade pip
"$folder/bin/python" -m pip install --quiet --editable "$root[brax]" "jax[cuda13]>=0.10"
"$folder/bin/python" -m pip install --quiet "qdax==0.5.0" # for its rows; without it they are left out
"$folder/bin/python" -m pip check
echo "run, for example: $folder/bin/python -m benchmarks.gpu_compile --quick"
