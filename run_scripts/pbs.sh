#!/usr/bin/env bash
#PBS -N mpisim
#PBS -l select=2:ncpus=32:mpiprocs=32
#PBS -l walltime=00:30:00
# A PBS job. From the repository, after run_scripts/setup.sh (a PBS script takes no arguments, so
# they come as a variable):
#
#   qsub -v MPISIM_ARGS="replay TRACES/ -o run.h5" run_scripts/pbs.sh
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
