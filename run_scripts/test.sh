#!/usr/bin/env bash
# Every check of a change: set up, lint, types, headline errors against measured data (without arguments
# only), the tests in one process, then those that are about several processes on 2 and on 4 with Open
# MPI 5, on 2 with Open MPI 4.1 and with MPICH, how runs end under the launchers of these two, and the
# digests of all three. Exits with an error if any part fails, after running them all. An MPI
# (with_mpi.sh) or PyTorch that cannot be had here is said and left out; of an MPI that is an error, too,
# where CI is set. What takes longer runs in nightly.sh. As root on Debian or Ubuntu, packages that some
# tests need are installed by apt-get: Slurm and munge (get_slurm.sh), Chromium (get_browser.sh),
# openmpi-bin (with_mpi.sh). PyTorch comes from PyPI (get_torch.sh), beside the parts before the tests.
#
#   bash run_scripts/test.sh [arguments for pytest, given to each of its runs]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash run_scripts/setup.sh || exit 1
source run_scripts/env.sh
export PATH="$PWD/.venv/bin:$PATH"

failed=()
part() {
    local title="$1" TIMEFORMAT="-- %0R s, of them on a core %0U s + %0S s"
    shift
    printf '\n== %s\n' "$title"
    time "$@" || failed+=("$title")
}

bash run_scripts/get_torch.sh &
torch=$!
bash run_scripts/get_slurm.sh
bash run_scripts/get_browser.sh
part "lint" ruff check .
part "format" ruff format --check .
# Beside one another: types take one core, headline errors at times, and PyTorch is waited for.
mkdir -p build
bash run_scripts/typecheck.sh > build/types.log 2>&1 &
types=$!
checked() {
    wait "$types"
    local code="$?"
    cat build/types.log
    return "$code"
}
[ "$#" -gt 0 ] || part "headline errors" python run_scripts/headline_errors.py
part "types" checked
skipped=()
wait "$torch"
case "$?" in
0) ;;
77) echo "skipped: captured scripts, which need PyTorch" ;;
*) failed+=("setting up PyTorch") ;;
esac
# Two at a time, the tests of a file one after another, files in the order that conftest.py gives.
part "tests, one process each" pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
# Ranks share the folder of pytest's cache, and a terminal's colours reach nobody.
quiet=(--color=no -p no:cacheprovider)
for processes in 2 4; do
    part "tests, $processes processes" mpirun -n "$processes" pytest "${quiet[@]}" "$@"
done

# What these compare no MPI library can change: what each process finds out for itself, and runs whose
# exchanges are those of test_engine_*.py, test_windows.py and test_gather.py. nightly.sh has all.
alike=()
for name in closed_loop fold fold_plans fold_shared network_truth search_exhaustive; do
    [ "$#" -gt 0 ] || alike+=("--ignore=tests/test_$name.py")
done
for mpi in openmpi4 mpich; do
    with=(bash run_scripts/with_mpi.sh "$mpi")
    "${with[@]}" true
    case "$?" in
    0)
        part "tests, $mpi, 2 processes" "${with[@]}" mpirun -n 2 pytest "${quiet[@]}" "${alike[@]}" "$@"
        # Mostly waiting, too.
        part "ends of runs, $mpi" "${with[@]}" pytest "${quiet[@]}" -n 2 tests/test_launched.py \
            -k "ends or terminated or four or prints" "$@"
        ;;
    77)
        skipped+=("$mpi")
        ;;
    *)
        failed+=("setting up $mpi")
        ;;
    esac
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
