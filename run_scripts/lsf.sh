#!/usr/bin/env bash
#BSUB -J mpisim
#BSUB -n 8
#BSUB -R "span[hosts=1]"
#BSUB -W 0:30
#BSUB -o mpisim.%J.log
# An LSF job. From the repository, after run_scripts/setup.sh (a script on standard input takes no
# arguments, so they come as a variable):
#
#   MPISIM_ARGS="replay TRACES/ -o run.h5" bsub < run_scripts/lsf.sh
#
# Eight processes on one machine: each needs most of a second of CPU time to start, and only long runs
# and jobs of many traces have enough to do for more (docs/scale.md, "How many processes").
#
# With the site's own MPI (MPISIM_SYSTEM_MPI=1 at set-up), load its module here.
set -euo pipefail
cd "$LS_SUBCWD"
source run_scripts/env.sh
export PATH="$PWD/.venv/bin:$PATH"

read -ra arguments <<< "${MPISIM_ARGS:-}"
# One line of the host file a process.
mpirun -n "$(wc -l < "$LSB_DJOB_HOSTFILE")" --hostfile "$LSB_DJOB_HOSTFILE" \
    "$PWD/.venv/bin/python" -m mpisim "${arguments[@]}"
