#!/usr/bin/env bash
#SBATCH --job-name=mpisim
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=32
#SBATCH --cpus-per-task=1
#SBATCH --time=00:30:00
# A Slurm job. From the repository, after run_scripts/setup.sh:
#
#   sbatch run_scripts/slurm.sh replay TRACES/ -o run.h5
#
# With the site's own MPI (MPISIM_SYSTEM_MPI=1 at set-up), load its module here. Where Slurm has
# the PMIx plug-in, "srun --mpi=pmix" may stand for "mpirun -n ...".
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
source run_scripts/env.sh
export PATH="$PWD/.venv/bin:$PATH"

mpirun -n "$SLURM_NTASKS" "$PWD/.venv/bin/python" -m mpisim "$@"
