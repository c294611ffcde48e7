#!/usr/bin/env bash
# What takes too long for every change: every bad input, every test of several processes on 4 of them and on
# every MPI, ten minutes of damaged files, jobs under Slurm, frameworks that are captured (get_frameworks.sh:
# 7 GB), the blocks of the documentation that take minutes, the whole validation. Needs measured data
# (MPISIM_SHARED, or ../shared). Exits with an error if any part fails, after running them all.
#
#   bash run_scripts/nightly.sh
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset PYTHONDONTWRITEBYTECODE # as in test.sh

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

# Twice as long as without: Python 3.11 has no cheap way to count lines.
part "coverage of Python lines" pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term
part "fault table" python tests/fault_table.py --check
# test.sh leaves out what more than two processes, and what another MPI library, cannot change.
part "tests, 4 processes" mpirun -n 4 pytest --color=no -p no:cacheprovider
for mpi in openmpi4 mpich; do
    part "tests, $mpi, 2 processes" bash run_scripts/with_mpi.sh "$mpi" mpirun -n 2 \
        pytest --color=no -p no:cacheprovider
done
part "damaged files" env MPISIM_FUZZ_EXAMPLES=600 pytest -q tests/test_fuzz.py
bash run_scripts/get_torch.sh
part "memory of captured programs" env MPISIM_SLOW=1 pytest -q tests/test_capture_memory.py -k torchtitan
part "frameworks to capture" bash run_scripts/get_frameworks.sh
# One after another: each test has a process of 1 GB beside it.
part "captured frameworks" env PYTHONPATH="$(echo "$PWD"/build/frameworks/lib/python*/site-packages)" \
    pytest -q --durations=20 tests/test_captured_frameworks.py
part "steps of captured programs" env PYTHONPATH="$(echo "$PWD"/build/frameworks/lib/python*/site-packages)" \
    python run_scripts/bench/captured_programs.py
part "classes of Hugging Face" env PYTHONPATH="$(echo "$PWD"/build/frameworks/lib/python*/site-packages)" \
    python run_scripts/huggingface_parameters.py
bash run_scripts/get_slurm.sh
part "batch systems" pytest -q tests/test_batch_systems.py
part "documentation, slow blocks too" python run_scripts/documents.py --slow
# Not among what tests need: it brings JupyterLab. Its release is in pyproject.toml.
hta=$(python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["hta"], sep="\n")')
part "HolisticTraceAnalysis" bash -c "pip install --quiet --disable-pip-version-check \$0 && pytest -q tests/test_export_kineto.py" "$hta"
part "random searches" mpirun -n 2 python run_scripts/bench/search_spaces.py
part "golden table" python run_scripts/golden.py
part "published factors" python run_scripts/bench/extrapolate_published.py \
    "${MPISIM_SHARED:-../shared}/groundtruth/e2e/all.csv" data/validation/*steps.csv --check data/validation/factors.csv
part "headline errors" env CI=1 python run_scripts/headline_errors.py

printf '\n'
if [ "${#failed[@]}" -gt 0 ]; then
    printf 'FAILED: %s\n' "${failed[@]}"
    exit 1
fi
echo "All nightly checks passed."
