#!/usr/bin/env bash
# flux: --job-name=mpisim
# flux: --nodes=1
# flux: --nslots=8
# flux: --time-limit=30m
# A Flux job. From the repository, after run_scripts/setup.sh:
#
#   flux batch run_scripts/flux.sh replay TRACES/ -o run.h5
#
# Eight processes on one machine: each needs most of a second of CPU time to start, and only long runs
# and jobs of many traces have enough to do for more (docs/scale.md, "How many processes").
#
# Open MPI is started through PMIx, which Flux has as a plug-in (flux-pmix). With the site's own
# MPI (MPISIM_SYSTEM_MPI=1 at set-up), load its module here.
set -euo pipefail
source run_scripts/env.sh
export PATH="$PWD/.venv/bin:$PATH"

flux run --ntasks=8 -o pmi=pmix "$PWD/.venv/bin/python" -m mpisim "$@"
