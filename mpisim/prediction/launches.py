"""Whether a step waits for the CPU to launch kernels, and what capturing them would gain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..base.errors import InputError
from ..base.quantity import PICOSECONDS
from ..base.text import duration, percentage
from ..engine.critical_path import PieceKind
from ..engine.run import Run
from ..experiment import with_keys
from ..mpi.parallel import collective_errors
from ..program import Kind, Program
from .execution import execute
from .long_steps import long_step
from .prepared import PreparedExperiment, prepare

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["launch_bound_statement", "launch_share"]

MIN_LAUNCH_SHARE = 0.05
"""Share of the critical path that launches take at least where their capture is simulated."""

MIN_GAIN = 0.02
"""Share of the step that capture saves at least where it is stated."""


def launch_share(run: Run) -> float:
    """Return the share of the critical path in which the CPU works and no GPU does, 0 to 1.

    Local.

    Parameters
    ----------
    run : Run
        With its critical path.
    """
    path = run.critical_path
    assert path is not None
    waits = (path.kind == PieceKind.HOST) | (path.kind == PieceKind.LAUNCH)
    return float(path.lengths[waits].sum()) / max(run.step_time, 1)


def launch_bound_statement(
    prepared: PreparedExperiment, run: Run, comm: Intracomm, long: bool = False
) -> dict[str, Any]:
    """Return what a step would take if CUDA graphs launched its kernels, as attributes of results.

    **Collective.** The experiment is simulated once more with ``framework.cuda_graphs``, but only
    where launches are on the critical path for `MIN_LAUNCH_SHARE` of the step. The length of
    launches on the path alone would not do: without them, another path may be hardly shorter. Where
    the CPU waits for results, such as the number of tokens of each expert, capture needs code that
    does without; the text says so.

    Parameters
    ----------
    prepared : PreparedExperiment
    run : Run
        Its run; on process 0 with the critical path.
    comm : mpi4py.MPI.Intracomm
    long : bool
        Whether the run is that of a long step, which follows from a short one
        (:mod:`mpisim.prediction.long_steps`).

    Returns
    -------
    dict
        Empty where nothing can be gained; else ``launch_bound`` (a text), ``launch_share`` (of the
        critical path) and ``cuda_graphs_step_time`` in seconds.
    """
    share: float = comm.bcast(launch_share(run) if comm.rank == 0 else 0.0)
    plan = prepared.experiment.plan
    if share < MIN_LAUNCH_SHARE or plan.framework.cuda_graphs or plan.framework.launch_blocking:
        return {}
    captured = replace(prepared.experiment, plan=with_keys(plan, {"framework.cuda_graphs": True}))
    memory, networks = prepared.memory, prepared.networks
    short = prepared.workload.layout.pipeline.micro_batches if long else None
    with collective_errors(comm):
        try:
            other = prepare(captured, None, memory, networks, short)
        except InputError:  # what this plan does cannot be captured
            other = None
    if other is None:
        return {}
    waits = _host_waits(prepared.program) - _host_waits(other.program)
    found = None if short is None else long_step(captured, comm, memory=memory, networks=networks)
    if found is not None:
        time = found.run.step_time
    else:
        with collective_errors(comm):
            other = other if short is None else prepare(captured, None, memory, networks)
        time = execute(other, comm)[0].step_time
    gain = 1 - time / max(run.step_time, 1)
    if gain < MIN_GAIN:
        return {}
    return {
        "launch_bound": (
            f"GPUs wait for the CPU to launch kernels, {percentage(share)} of the critical path; "
            f"CUDA graphs (framework.cuda_graphs = true) would make the step {duration(time)}, "
            f"{percentage(gain)} less"
            + ("" if waits <= 0 else ", if the CPU need not wait for results as it does now")
        ),
        "launch_share": share,
        "cuda_graphs_step_time": time / PICOSECONDS,
    }


def _host_waits(program: Program) -> int:
    """Return the number of rows in which the CPU waits for the device, over all tables."""
    return sum(
        int((table.kind == Kind.HOST_WAIT).sum()) for table in program.tables if table is not None
    )
