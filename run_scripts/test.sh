#!/usr/bin/env bash
# Every check of a change: set up, lint, types, headline errors against measured data (without arguments
# only), the tests in one process, then those that are about several processes on 2 and on 4 with Open
# MPI 5, those of all kinds of MPI calls on 2 with Open MPI 4.1 and with MPICH, how runs end under the
# launchers of these two, and the digests of all three. Exits with an error if any part fails, after
# running them all. An MPI (with_mpi.sh) or PyTorch that cannot be had here is said and left out; of an
# MPI that is an error, too, where CI is set. What takes longer runs in nightly.sh. As root on Debian or
# Ubuntu, packages that some tests need are installed by apt-get: Slurm and munge (get_slurm.sh), Chromium
# (get_browser.sh), openmpi-bin (with_mpi.sh). PyTorch and MPICH come from PyPI, beside the parts before
# the tests.
#
#   bash run_scripts/test.sh [arguments for pytest, given to each of its runs]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Containers often set it; each of twenty processes of pytest would rewrite all of hypothesis again.
unset PYTHONDONTWRITEBYTECODE

# Beside one another: packages of Debian are waited for, and compiling takes both cores only at its end.
mkdir -p build
{
    bash run_scripts/get_slurm.sh
    bash run_scripts/get_browser.sh
} > build/packages.log 2>&1 &
packages=$!
bash run_scripts/setup.sh
ready="$?"
wait "$packages" # if setup.sh failed, too: apt-get that is stopped leaves packages half installed
cat build/packages.log
[ "$ready" = 0 ] || exit 1
source run_scripts/env.sh
export PATH="$PWD/.venv/bin:$PATH"

failed=() skipped=()
TIMEFORMAT="-- %0R s, of them on a core %0U s + %0S s"
part() {
    local title="$1"
    shift
    printf '\n== %s\n' "$title"
    time "$@" || failed+=("$title")
}
# A part that takes one core at times, or is mostly waited for, runs beside others from `begin` to `finish`.
declare -A begun=()
begin() {
    local title="$1"
    shift
    { time "$@"; } > "build/$title.log" 2>&1 &
    begun["$title"]="$!"
}
finish() {
    printf '\n== %s\n' "$1"
    wait "${begun["$1"]}" || failed+=("$1")
    cat "build/$1.log"
}

mpis=(openmpi4 mpich)
# Ranks share the folder of pytest's cache, and a terminal's colours reach nobody.
quiet=(--color=no -p no:cacheprovider)
given=("$@")

# PyTorch and the MPIs; its code says how PyTorch went, MPIs are asked again where they count.
fetch() {
    local mpi code=0
    bash run_scripts/get_torch.sh || code="$?"
    for mpi in "${mpis[@]}"; do
        bash run_scripts/with_mpi.sh "$mpi" true
    done
    return "$code"
}
fetch > build/fetched.log 2>&1 &
fetched="$!"
# With a third of the weight of a test, each of which has to end in time.
[ "$#" -gt 0 ] || begin "headline errors" nice -n 5 python run_scripts/headline_errors.py
part "lint" ruff check .
part "format" ruff format --check .
part "types" bash run_scripts/typecheck.sh
wait "$fetched"
code="$?"
cat build/fetched.log
case "$code" in
0) ;;
77) echo "skipped: captured scripts, which need PyTorch" ;;
*) failed+=("setting up PyTorch") ;;
esac

found=()
for mpi in "${mpis[@]}"; do
    bash run_scripts/with_mpi.sh "$mpi" true
    case "$?" in
    0) found+=("$mpi") ;;
    77) skipped+=("$mpi") ;;
    *) failed+=("setting up $mpi") ;;
    esac
done
# How runs end under the launchers of other MPIs: both beside one another, as they are mostly waited for.
ends() {
    local mpi pid code=0 waited=()
    for mpi in "$@"; do
        bash run_scripts/with_mpi.sh "$mpi" pytest "${quiet[@]}" -n 2 tests/test_launched.py \
            -k "ends or terminated or four or prints" "${given[@]}" > "build/ends-$mpi.log" 2>&1 &
        waited+=("$!")
    done
    for pid in "${waited[@]}"; do
        wait "$pid" || code=1
    done
    for mpi in "$@"; do
        printf '%s\n' "-- $mpi"
        cat "build/ends-$mpi.log"
    done
    return "$code"
}
[ "${#found[@]}" = 0 ] || begin "ends of runs, ${found[*]}" ends "${found[@]}"

# Three at a time, since some wait for what they have started; the tests of a file one after another,
# files in the order that conftest.py gives.
part "tests, one process each" pytest -n 3 --dist loadfile --no-loadscope-reorder "$@"
[ "${#found[@]}" = 0 ] || finish "ends of runs, ${found[*]}"
[ "$#" -gt 0 ] || finish "headline errors"

# Processes that wait for each other look for messages all the time: nothing runs beside them.
part "tests, 2 processes" mpirun -n 2 pytest "${quiet[@]}" "$@"
# The marker mpi_calls: what an MPI library can change, its calls of every kind, each made there as the
# engine, results, exports, the status of runs and groups of processes (samples) make it. The marker
# two_processes: what more than two processes cannot change; how ranks, workers, rows and candidates are
# placed, they can. A new test has neither, and runs on 4. nightly.sh has all, everywhere.
calls=() placed=()
[ "$#" -gt 0 ] || calls=(-m mpi_calls) placed=(-m "not two_processes")
part "tests, 4 processes" mpirun -n 4 pytest "${quiet[@]}" "${placed[@]}" "$@"
for mpi in "${found[@]}"; do
    part "tests, $mpi, 2 processes" bash run_scripts/with_mpi.sh "$mpi" \
        mpirun -n 2 pytest "${quiet[@]}" "${calls[@]}" "$@"
done
part "the same digests on three MPIs" python run_scripts/digests.py

printf '\n'
if [ "${#skipped[@]}" -gt 0 ]; then
    printf 'skipped: %s\n' "${skipped[@]}"
    if [ -n "${CI:-}" ]; then
        failed+=("MPI libraries that cannot be had: ${skipped[*]}")
    fi
fi
if [ "${#failed[@]}" -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
echo "All checks passed."
