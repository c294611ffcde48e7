"""Launch-bound steps: share of the step that waits for CPU launches, gain from CUDA graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import InputError
from ..base.quantity import PICOSECONDS
from ..base.text import duration, percentage
from ..engine.critical_path import PieceKind
from ..engine.run import Run
from ..experiment import with_keys
from ..mpi.parallel import collective_errors
from ..program import UNPRICED, Kind, Program
from .execution import execute
from .long_steps import long_step
from .prepared import PreparedExperiment, prepare

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["launch_bound_statement", "launch_share", "with_hidden_launches"]

MIN_LAUNCH_SHARE = 0.05
"""Share of the critical path that launches take at least where their capture is simulated."""

MIN_GAIN = 0.02
"""Share of the step that capture saves at least where it is stated."""


def launch_share(run: Run) -> float:
    """Run → share of its critical path in which the CPU works and no GPU does, 0 to 1.

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


def with_hidden_launches(
    lengths: Mapping[str, float],
    program: Program,
    run: Run,
    shares: Mapping[str, float],
    errors: Mapping[str, float],
) -> dict[str, float]:
    """Sensitivities along the critical path → the same, with launches it hides counted by half.

    Launch times are known to a half only, and where CPU and GPU are about equally long either may
    be critical: along the path a step would depend on launches altogether, or not at all. A step is
    at least as long as a CPU is busy, and as the kernels of a stream take. So a CPU that is slower
    by the error makes it longer by what first order says, or by what that CPU is busy beyond the
    step, whichever is more; a faster one shorter by first order, but not below the longest stream.
    Half of the difference is the effect. CPUs and streams are those of ranks on the path. Local.

    Parameters
    ----------
    lengths : mapping of str to float
        Along the critical path, in ps.
    program : Program
    run : Run
        With its critical path.
    shares : mapping of str to float
        Share of the CPU's time that is proportional to each of its numbers.
    errors : mapping of str to float
        Relative error bars of numbers, by name.
    """
    assert run.critical_path is not None
    busy = longest = 0
    for number in np.unique(program.table[run.critical_path.rank]).tolist():
        table = program.tables[number]
        assert table is not None  # the path was found in it
        busy = max(busy, int((table.host + table.launch_cost).sum()))
        timed = (table.duration != UNPRICED) & (table.stream >= 0)
        sums = np.bincount(table.stream[timed], weights=(table.duration + table.gap)[timed])
        longest = max(longest, int(sums.max(initial=0)))
    found = dict(lengths)
    for name, share in shares.items():
        error = errors.get(name, 0.0)
        if error <= 0:
            continue
        first = error * found.get(name, 0.0)
        slower = max(first, busy * (1 + error * share) - run.step_time)
        faster = min(first, max(run.step_time - longest, 0))
        found[name] = (slower + faster) / 2 / error
    return found


def launch_bound_statement(
    prepared: PreparedExperiment, run: Run, comm: Intracomm, long: bool = False
) -> dict[str, Any]:
    """Run → its step time if CUDA graphs launched the kernels, as attributes of results.

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
    memory, networks = prepared.memory, prepared.networks
    short = prepared.workload.layout.pipeline.micro_batches if long else None
    with collective_errors(comm):
        try:
            graphs = with_keys(plan, {"framework.cuda_graphs": True})
            captured = replace(prepared.experiment, plan=graphs)
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
