# Launcher settings for the scripts of this folder and for the tests. Sourced, never run.
# Whatever is set already stays as it is.

# Containers and CI machines often have no user but root, and Open MPI refuses to start as root
# unless asked twice. No effect for other users.
export OMPI_ALLOW_RUN_AS_ROOT="${OMPI_ALLOW_RUN_AS_ROOT:-1}"
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-1}"

# Eight simulated ranks on a two-core laptop are the normal case: allow more processes than cores,
# in the words of Open MPI 5 and of Open MPI 4. MPICH allows it by itself.
export PRTE_MCA_rmaps_default_mapping_policy="${PRTE_MCA_rmaps_default_mapping_policy:-:oversubscribe}"
export OMPI_MCA_rmaps_base_oversubscribe="${OMPI_MCA_rmaps_base_oversubscribe:-1}"

# On one machine, shared memory is the fastest transport, and naming it spares Open MPI the probing
# of network cards at start-up: "vader", which Open MPI 5 calls "sm" and knows by both names; TCP is for
# processes that do not see each other's memory. Containers often forbid to read another process's
# memory, which Open MPI 4 tries and then complains about for each process. In a batch job the site's
# own choice stands: what a shell on the login node set here, and the job inherited, is taken back.
if [ -z "${SLURM_JOB_ID:-}${PBS_JOBID:-}${LSB_JOBID:-}${FLUX_URI:-}" ]; then
    if [ -z "${OMPI_MCA_pml:-}${OMPI_MCA_btl:-}" ]; then
        export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp MPISIM_ONE_MACHINE=1
        # UCX comes with Open MPI and is not used then, but would still hook into the allocation of
        # memory as it is loaded: 40 ms of waiting in every process.
        export UCX_MEM_EVENTS="${UCX_MEM_EVENTS:-no}"
    fi
    export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
elif [ -n "${MPISIM_ONE_MACHINE:-}" ]; then
    unset OMPI_MCA_pml OMPI_MCA_btl OMPI_MCA_btl_vader_single_copy_mechanism MPISIM_ONE_MACHINE \
        UCX_MEM_EVENTS
fi

# One-sided communication is not used; its UCX component warns where there is no such network.
export OMPI_MCA_osc="${OMPI_MCA_osc:-^ucx}"

# A process that waits lets others run: there may be fewer cores than processes, and Open MPI does not
# see a limit that a container or other programs set.
export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"

# Parallelism is MPI's: a thread pool in every process would fight over the cores.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}"

# Under mpirun no process sees the terminal: pass on whether a person is watching.
if [ -t 2 ]; then
    export MPISIM_PROGRESS="${MPISIM_PROGRESS:-1}"
fi
