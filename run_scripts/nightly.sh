#!/usr/bin/env bash
# Checks that take too long for every change. Exits with an error if any part fails, after running
# them all.
#
#   bash run_scripts/nightly.sh
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

# --- faults: every bad input on every MPI, ten minutes of damaged files, jobs under Slurm ---------
part "fault table" python run_scripts/fault_table.py --check
part "damaged files" env MPISIM_FUZZ_EXAMPLES=600 pytest -q tests/test_fuzz.py
bash run_scripts/get_slurm.sh
part "batch systems" pytest -q tests/test_batch_systems.py

if [ "${#failed[@]}" -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
