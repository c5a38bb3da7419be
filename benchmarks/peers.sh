#!/usr/bin/env bash
# Create the virtual environments of the benchmarks.
#
#   benchmarks/peers.sh [FOLDER]     FOLDER is .venv-peers by default; PYTHON chooses the interpreter (>= 3.11)
#
# FOLDER contains this package, editable, and the libraries it is compared with. They run in one process, so that ratios
# are measured in one run with one version of JAX. FOLDER-jaxagents contains jaxagents 0.2.5 with its old dependencies,
# without this package; PYTHON_JAXAGENTS chooses its interpreter, which must be Python 3.12, or it is skipped.
# FOLDER-sbx is for SBX and stable-baselines3. They need PyTorch, whose wheels differ by platform and processor: create this
# environment and install PyTorch there first (a CPU build suffices), or it is skipped. The rest is added here: this
# package, editable, with Gymnasium, SBX and stable-baselines3.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="${1:-$root/.venv-peers}"

"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --upgrade pip
"$folder/bin/python" -m pip install --quiet --editable "$root[bench]" "qdax>=0.5" "ribs>=0.8" "rejax==0.1.3" distrax
# rejax's dependencies bring two packages with the same modules, of which this one works with today's JAX.
"$folder/bin/python" -m pip install --quiet --force-reinstall --no-deps tfp-nightly
"$folder/bin/python" -m pip check
"$folder/bin/python" - <<'VERSIONS'
from importlib.metadata import version

names = ("rookery", "qdax", "ribs", "rejax", "brax", "gymnax", "jaxmarl", "jax", "jaxlib", "flax", "optax")
print(" ".join(f"{name}=={version(name)}" for name in names))
VERSIONS

old_python="${PYTHON_JAXAGENTS:-python3.12}"
if "$old_python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
    "$old_python" -m venv "$folder-jaxagents"
    pip=("$folder-jaxagents/bin/python" -m pip install --quiet)
    "${pip[@]}" --upgrade pip
    "${pip[@]}" --no-deps "jaxagents==0.2.5" # it requires JAX for CUDA, which is not needed here
    "${pip[@]}" "jax==0.4.28" "jaxlib==0.4.28" "flax==0.8.4" "gymnax==0.0.6" "orbax==0.1.9" "distrax<0.2" \
        "jax-tqdm<0.3" "jaxtyping<0.3" "numpy<2" "scipy<1.13"
    # One of its annotations is not a type (`Callable[[...], [int]]`), so that its import raises; corrected in place.
    module="$("$folder-jaxagents/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/jaxagents/ippo.py"
    sed -i.orig 's/\], \[int\]\]\]/], int]]/' "$module"
    (cd "$root" && "$folder-jaxagents/bin/python" benchmarks/peers_ippo.py --help >/dev/null)
    echo "jaxagents==0.2.5 in $folder-jaxagents"
else
    echo "no Python 3.12 ($old_python): jaxagents is skipped; benchmarks.ippo cannot run" >&2
fi

if "$folder-sbx/bin/python" -c 'import torch' 2>/dev/null; then
    pip=("$folder-sbx/bin/python" -m pip install --quiet)
    "${pip[@]}" --editable "$root[gymnasium]" "sbx-rl==0.28.0" "stable-baselines3==2.9.2"
    "$folder-sbx/bin/python" -m pip check
    "$folder-sbx/bin/python" - <<'VERSIONS'
from importlib.metadata import version

names = ("rookery", "sbx-rl", "stable-baselines3", "torch", "gymnasium", "mujoco", "jax", "jaxlib", "flax", "optax")
print(" ".join(f"{name}=={version(name)}" for name in names))
VERSIONS
    echo "run, for example, $folder-sbx/bin/python -m benchmarks.gymnasium_speed --quick"
else
    echo "no PyTorch in $folder-sbx: SBX is skipped; benchmarks.gymnasium_speed and learning.gymnasium cannot run" >&2
fi

echo "run, for example: $folder/bin/python -m benchmarks.population_update --quick"
