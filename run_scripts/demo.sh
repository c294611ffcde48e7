#!/usr/bin/env bash
# Set up, then simulate one training step on 8 GPUs, one simulated rank a process.
#
#   bash run_scripts/demo.sh [options of "mpisim run"]
#
# One process is faster for so small a run: docs/scale.md, "How many processes".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash run_scripts/setup.sh
source run_scripts/env.sh
export PATH="$PWD/.venv/bin:$PATH"

exec mpirun -n 8 python -m mpisim "$@"
