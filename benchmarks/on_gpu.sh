#!/usr/bin/env bash
# Measure the tables of benchmarks/notes/performance.md that need a GPU, within ten minutes; writes JSON into benchmarks/results.
#
#   benchmarks/on_gpu.sh [FLAGS]     in an environment with the extras cuda13 (or cuda12) and playground; PYTHON chooses
#                                    the interpreter, FLAGS are those of `python -m benchmarks.on_gpu`
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$(mktemp -d)}"
# The limit is for a measurement that began just before the end; what was measured is written all the same.
timeout --signal=INT --kill-after=60 600 "${PYTHON:-python3}" -m benchmarks.on_gpu "$@"
