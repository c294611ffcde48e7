#!/usr/bin/env bash
# Every check of a change: set up, lint, types, the tests in one process, then those that are about
# several processes on 2 and on 4 with Open MPI 5, on 2 with Open MPI 4.1 and with MPICH, how runs
# end under the launchers of these two, the digests of all three, and headline errors against
# measured data (without arguments only). Exits with an error if any part fails, after
# running them all. An MPI (with_mpi.sh) or PyTorch that cannot be had here is said and left out; of an MPI
# that is an error, too, where CI is set. What takes longer runs in nightly.sh. As root on Debian or Ubuntu, packages that
# some tests need are installed by apt-get: Slurm and munge (get_slurm.sh), Chromium (get_browser.sh),
# openmpi-bin (with_mpi.sh). PyTorch comes from PyPI (get_torch.sh), beside lint and types.
#
#   bash run_scripts/test.sh [arguments for pytest, given to each of its runs]
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash run_scripts/setup.sh || exit 1
source run_scripts/env.sh
export PATH="$PWD/.venv/bin:$PATH"

failed=()
part() {
    local title="$1"
    shift
    printf '\n== %s\n' "$title"
    "$@" || failed+=("$title")
}

bash run_scripts/get_torch.sh &
torch=$!
bash run_scripts/get_slurm.sh
bash run_scripts/get_browser.sh
part "lint" ruff check .
part "format" ruff format --check .
part "types" bash run_scripts/typecheck.sh
# While PyTorch is fetched, which is mostly waiting.
[ "$#" -gt 0 ] || part "headline errors" python run_scripts/headline_errors.py
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

for mpi in openmpi4 mpich; do
    with=(bash run_scripts/with_mpi.sh "$mpi")
    "${with[@]}" true
    case "$?" in
    0)
        part "tests, $mpi, 2 processes" "${with[@]}" mpirun -n 2 pytest "${quiet[@]}" "$@"
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
