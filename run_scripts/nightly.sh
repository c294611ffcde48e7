#!/usr/bin/env bash
# What takes too long for every change: the blocks of the documentation that take minutes, and the
# whole validation. Needs a set-up .venv and measured data (MPISIM_SHARED, or ../shared). Exits with
# an error if any part fails, after running them all.
#
#   bash run_scripts/nightly.sh
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source run_scripts/env.sh
export PATH="$PWD/.venv/bin:$PATH"

failed=()
part() {
    local title="$1"
    shift
    printf '\n== %s\n' "$title"
    "$@" || failed+=("$title")
}

part "documentation, slow blocks too" python run_scripts/documents.py --slow
part "golden table" python run_scripts/golden.py
part "headline errors" env CI=1 python run_scripts/headline_errors.py

printf '\n'
if [ "${#failed[@]}" -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
echo "All nightly checks passed."
