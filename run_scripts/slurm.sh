#!/usr/bin/env bash
#SBATCH --job-name=mpisim
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=1
#SBATCH --time=00:30:00
# A Slurm job. From the repository, after run_scripts/setup.sh:
#
#   sbatch run_scripts/slurm.sh replay TRACES/ -o run.h5
#
# Eight processes on one machine: each needs most of a second of CPU time to start, and only long runs
# and jobs of many traces have enough to do for more (docs/scale.md, "How many processes").
#
# With the site's own MPI (MPISIM_SYSTEM_MPI=1 at set-up), load its module here. Where Slurm has
# the PMIx plug-in, "srun --mpi=pmix" may stand for "mpirun -n ...".
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
source run_scripts/env.sh
export PATH="$PWD/.venv/bin:$PATH"

mpirun -n "$SLURM_NTASKS" "$PWD/.venv/bin/python" -m mpisim "$@"
