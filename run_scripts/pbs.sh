#!/usr/bin/env bash
#PBS -N mpisim
#PBS -l select=1:ncpus=8:mpiprocs=8
#PBS -l walltime=00:30:00
# A PBS job. From the repository, after run_scripts/setup.sh (a PBS script takes no arguments, so
# they come as a variable):
#
#   qsub -v MPISIM_ARGS="replay TRACES/ -o run.h5" run_scripts/pbs.sh
#
# Arguments are split at blanks, and qsub ends a variable at a comma: what has either in it goes into a
# copy of this script, in place of "${arguments[@]}".
#
# Eight processes on one machine: each needs most of a second of CPU time to start, and only long runs
# and jobs of many traces have enough to do for more (docs/scale.md, "How many processes").
#
# With the site's own MPI (MPISIM_SYSTEM_MPI=1 at set-up), load its module here.
set -euo pipefail
cd "$PBS_O_WORKDIR"
source run_scripts/env.sh
export PATH="$PWD/.venv/bin:$PATH"

read -ra arguments <<< "${MPISIM_ARGS:-}"
# One line of the node file a process.
mpirun -n "$(wc -l < "$PBS_NODEFILE")" --hostfile "$PBS_NODEFILE" \
    "$PWD/.venv/bin/python" -m mpisim "${arguments[@]}"
