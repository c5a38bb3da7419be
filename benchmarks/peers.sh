#!/usr/bin/env bash
# Make the virtual environments that the benchmarks run in.
#
#   benchmarks/peers.sh [FOLDER]     FOLDER is .venv-peers by default; PYTHON chooses the interpreter (>= 3.11)
#
# FOLDER has this package, editable, beside the peers it is measured against. They share one process, so that a ratio is
# measured in one run with one version of JAX. FOLDER-jaxagents has jaxagents 0.2.5 with what it was made for, and
# nothing of ours; PYTHON_JAXAGENTS chooses its interpreter, which must be Python 3.12, and without one it is left out.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="${1:-$root/.venv-peers}"

"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --upgrade pip
"$folder/bin/python" -m pip install --quiet --editable "$root[bench]" "qdax>=0.5" "ribs>=0.8" "rejax==0.1.3" distrax
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
    "${pip[@]}" --no-deps "jaxagents==0.2.5" # it asks for JAX for CUDA, which it does not need
    "${pip[@]}" "jax==0.4.28" "jaxlib==0.4.28" "flax==0.8.4" "gymnax==0.0.6" "orbax==0.1.9" "distrax<0.2" \
        "jax-tqdm<0.3" "jaxtyping<0.3" "numpy<2" "scipy<1.13"
    # One annotation of it is not a type (`Callable[[...], [int]]`), so that its import raises; mended in place.
    module="$("$folder-jaxagents/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/jaxagents/ippo.py"
    sed -i.orig 's/\], \[int\]\]\]/], int]]/' "$module"
    (cd "$root" && "$folder-jaxagents/bin/python" benchmarks/peers_ippo.py --help >/dev/null)
    echo "jaxagents==0.2.5 in $folder-jaxagents"
else
    echo "no Python 3.12 ($old_python): jaxagents is left out, and with it benchmarks.ippo" >&2
fi
echo "run, for example: $folder/bin/python -m benchmarks.population_update --quick"
