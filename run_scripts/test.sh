#!/usr/bin/env bash
# Every check there is: set up, lint, types, the tests in one process, then those that are about
# several processes on 2 and on 4, and headline errors against measured data (4 minutes; without
# arguments only). Exits with an error if any part fails, after running them all. What takes longer
# runs in nightly.sh.
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

part "lint" ruff check .
part "types" bash run_scripts/typecheck.sh
part "tests, one process" pytest "$@"
# Ranks share the folder of pytest's cache, and a terminal's colours reach nobody.
for processes in 2 4; do
    part "tests, $processes processes" \
        mpirun -n "$processes" pytest --color=no -p no:cacheprovider "$@"
done
[ "$#" -gt 0 ] || part "headline errors" python run_scripts/headline_errors.py

printf '\n'
if [ "${#failed[@]}" -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
echo "All checks passed."
