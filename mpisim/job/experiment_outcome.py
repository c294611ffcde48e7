"""An experiment with ``[job]`` → its outcome: the step is simulated once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.errors import InputError
from ..cost.step import cost_of_cluster
from ..experiment import Experiment
from ..mpi.parallel import collective_errors, progress
from ..prediction.hardware import Hardware, gpu_kinds, hardware_of, with_convolutions
from ..results import Results
from ..simulate import simulate
from ..workloads import lay_out
from .checkpoint import checkpoint_of
from .inputs import JobCluster, Step, named_tables, recovery
from .outcome import Costs, JobOutcome, job_outcome

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["cluster_of", "costs_of", "experiment_outcome", "step_of"]


DRAWN = (
    "until a failure is noticed, GPUs draw what they do in communications alone: the others wait "
    "in a collective; for a checkpoint they are idle, and hosts draw what they do under load",
    "while nodes wait, restart or are maintained, and spares: GPUs idle, hosts as if nothing runs",
)
"""What parts of a job are taken to draw, for people."""


def experiment_outcome(
    experiment: Experiment, comm: Intracomm, *, show: bool = False, changes: bool = True
) -> JobOutcome:
    """Experiment with ``[job]`` → when its job is done. **Collective.**

    Parameters
    ----------
    experiment : Experiment
    comm : mpi4py.MPI.Intracomm
        The processes that share the step, and then the runs; all get the outcome.
    show : bool
        Show the progress of a long run, if a person is watching.
    changes : bool
        Whether to look at what would change it.

    Raises
    ------
    InputError
        If the experiment has no ``[job]``, or one that cannot be done.
    """
    with collective_errors(comm):
        if experiment.job is None:
            raise InputError(
                f"{experiment.source}: has no table [job]; give tokens or steps, as "
                "--set job.tokens=15.6e12 (docs/job.md)"
            )
        try:
            named_tables(experiment.job)  # before the step is simulated, not after
        except InputError as error:
            raise InputError(f"{experiment.source}: {error}") from error
        cluster = cluster_of(experiment)
    results = simulate(experiment, comm, progress=show)
    found: tuple[Step, Costs | None] | None = None
    with collective_errors(comm):
        if results is not None:
            found = step_of(experiment, results), costs_of(experiment, results)
    step, costs = comm.bcast(found, root=0)
    try:
        with progress(comm, "simulating runs of the job" if show else ""):
            return job_outcome(step, cluster, experiment.job, costs, comm, changes=changes)
    except InputError as error:
        raise InputError(f"{experiment.source}: {error}") from error


def step_of(experiment: Experiment, results: Results) -> Step:
    """Experiment and the result of its step → seconds, error and samples of the step. Local.

    Parameters
    ----------
    experiment : Experiment
    results : Results
        Of one simulated step.
    """
    words = "tokens" if experiment.model.samples == "sequences" else experiment.model.samples
    error = results.attributes["uncertainty"]
    return Step(results.step_time, float(error), int(results.attributes[words]))


def costs_of(experiment: Experiment, results: Results) -> Costs | None:
    """Experiment and the result of its step → power and prices of its cluster. Local.

    Parameters
    ----------
    experiment : Experiment
    results : Results
        Of one simulated step.

    Returns
    -------
    Costs or None
        None where nothing says what the hardware draws.
    """
    attributes = results.attributes
    if "power" not in attributes:  # nothing says what the hardware draws
        return None
    power, prices = cost_of_cluster(experiment)
    # A checkpoint is copied and written by hosts, while GPUs wait; until a failure is noticed,
    # the GPUs that have not failed wait in a collective.
    standing, hung = power.while_gpus("idle"), power.while_gpus("communication")
    return Costs(
        watts=float(attributes["power"]),
        idle_watts=power.idle.value,
        standing_watts=standing.value,
        hung_watts=hung.value,
        idle_error=power.idle.relative,
        standing_error=standing.relative,
        hung_error=hung.relative,
        watts_error=float(attributes["power_error"]),
        pue=power.pue.value,
        usd_hour=None if prices.hour is None else prices.hour.value,
        usd_error=0.0 if prices.hour is None else prices.hour.relative,
        usd_kwh=prices.kwh.value if prices.pays_electricity else 0.0,
        missing=prices.missing,
        lines=(*power.assumptions, *DRAWN, *prices.assumptions),
    )


def cluster_of(experiment: Experiment) -> JobCluster:
    """Experiment → what its job needs to know of cluster and plan. Local.

    Raises
    ------
    InputError
        If hardware is unknown, or model, plan and cluster do not go together.
    """
    try:
        hardware: Hardware = hardware_of(experiment)
        experiment = with_convolutions(experiment, hardware.named)
        kinds = gpu_kinds(experiment.cluster, hardware.cluster, hardware.named)
        layout = lay_out(experiment, hardware.gpus, kinds)
    except InputError as error:
        raise InputError(f"{experiment.source}: {error}") from error
    node = hardware.cluster.node
    pcie = None if node is None else node.pcie_bandwidth or node.link_bandwidth
    return JobCluster(
        gpus=layout.grid.world,
        gpus_per_node=hardware.cluster.gpus_per_node,
        checkpoint=checkpoint_of(layout),
        host_bandwidth=(recovery().host if pcie is None else pcie).si,
    )
