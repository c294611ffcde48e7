"""Execution: a prepared experiment or program → the engine's run, once or with many seeds.

`execute` runs the engine, several times where overlapping kernels and communications slow each
other (:mod:`mpisim.overlap`). `sampled_steps` repeats it with random factors of other seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from .. import engine
from ..base.errors import UsageError
from ..mpi.parallel import collective_errors
from ..mpi.parallel import progress as show_progress
from ..mpi.reductions import allreduce_max
from ..program import Program
from ..topo import Network
from .circuits import with_set_ups
from .prepared import PreparedExperiment

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..overlap import OverlapSummary
    from ..workloads.pricing import Pricing
    from .prepared_program import PreparedProgram

__all__ = ["check_seeds", "execute", "sample_statements", "sampled_steps"]

QUANTILES = (50, 95, 99)


def execute(
    prepared: PreparedExperiment | PreparedProgram | Program,
    comm: Intracomm,
    *,
    network: Network | None = None,
    contention: bool = True,
    fold: bool | None = None,
    critical_path: bool = False,
    progress: bool = False,
    timeline: bool = False,
    setup: engine.RunSetup | None = None,
    passes: list[engine.Run] | None = None,
    digest: bool = True,
) -> tuple[engine.Run, OverlapSummary | None]:
    """Prepared experiment, prepared program, or program → its run. **Collective.**

    Parameters
    ----------
    prepared : PreparedExperiment, PreparedProgram or Program
    comm : mpi4py.MPI.Intracomm
    network : Network, optional
        Used in place of the prepared one.
    contention : bool
        Whether communications share the links of `network`; an experiment has a key for its own.
    fold, critical_path, timeline, digest : bool
        As for `mpisim.engine.simulate`.
    progress : bool
        Show progress, if a person is watching.
    setup : engine.RunSetup, optional
        Of an earlier run of the same tables, to be reused where valid.
    passes : list of engine.Run, optional
        The run of every pass is appended: see :mod:`mpisim.overlap.passes`.

    Returns
    -------
    run : Run
    overlap : OverlapSummary or None
        Slowdown of overlapping kernels and communications, if that is modelled.
    """
    program = prepared if isinstance(prepared, Program) else prepared.program
    setups = None if isinstance(prepared, Program) else prepared.networks.setups
    if network is None and not isinstance(prepared, Program):
        network, contention = prepared.network, prepared.experiment.network.contention

    with collective_errors(comm):
        program = with_set_ups(program, network)
    number = 0

    def run(
        program: Program,
        wire_delays: Sequence[NDArray[np.int64] | None] = (),
        last: bool = True,
        placement: NDArray[np.int32] | None = None,
    ) -> engine.Run:
        nonlocal setup, number
        number += 1
        label = "simulating" if number == 1 else f"simulating, pass {number}"
        # Runs that only tell what overlaps need no digest, and need not simulate every rank by
        # itself, though the last is to: the times are the same.
        found = engine.simulate(
            program,
            comm,
            network=network,
            contention=contention,
            critical_path=last and critical_path,
            placement=placement,
            fold=fold if last and placement is None else None,
            progress=label if progress else "",
            timeline=last and timeline,
            wire_delays=wire_delays,
            setup=setup,
            setups=setups,
            digest=last and digest,
        )
        setup = found.setup if number == 1 else setup  # later runs differ in durations alone
        if passes is not None:
            passes.append(found)
        return found

    if isinstance(prepared, Program) or prepared.experiment.overlap.model == "off":
        return run(program), None
    placed = network or prepared.network
    pricings, gpu_of = _pricings(prepared)
    if not pricings or placed is None:
        return run(program), None

    from ..overlap import OverlapSummary, overlap_model, run_with_slowdown

    choice, source = prepared.experiment.overlap, prepared.experiment.source
    assert choice.model != "off"
    with show_progress(comm, "working out what overlaps" if progress else ""):
        with collective_errors(comm):
            model = overlap_model(program, placed, pricings, gpu_of, choice, source)
        outcome = run_with_slowdown(model, run, choice.model, comm, choice.passes)
    return outcome.run, OverlapSummary(model, outcome, choice.model)


def _pricings(
    prepared: PreparedExperiment | PreparedProgram,
) -> tuple[Sequence[Pricing], NDArray[np.int64] | None]:
    """Return the price tables of each kind of GPU, and which of them each rank has, if several."""
    if isinstance(prepared, PreparedExperiment):
        return prepared.workload.pricings, prepared.workload.layout.gpu_of
    return () if prepared.pricing is None else (prepared.pricing,), None


# --- many seeds -----------------------------------------------------------------------------------


def check_seeds(prepared: PreparedExperiment | PreparedProgram, count: int) -> None:
    """Refuse several seeds for a run without random factors: all would give the same step.

    Parameters
    ----------
    prepared : PreparedExperiment or PreparedProgram
    count : int
        Of seeds; 1 is never refused.

    Raises
    ------
    UsageError
    """
    if count > 1 and not prepared.experiment.variation.random:
        raise UsageError(
            f"{count} seeds would give the same step {count} times: set variation.kernels or "
            "variation.gpus above 0"
        )


def sampled_steps(
    prepared: PreparedExperiment | PreparedProgram,
    comm: Intracomm,
    count: int,
    *,
    fold: bool | None = None,
    show: bool = False,
) -> NDArray[np.int64]:
    """Prepared experiment, number of seeds → step time with each seed. **Collective.**

    Samples are spread over groups of processes; with as many samples as processes or more, each
    process runs its own.

    Parameters
    ----------
    prepared : PreparedExperiment or PreparedProgram
    comm : mpi4py.MPI.Intracomm
    count : int
        The seeds are that of the experiment and the ``count - 1`` after it.
    fold : bool, optional
        As for `mpisim.simulate`.
    show : bool
        Show progress, if a person is watching.

    Returns
    -------
    int64, shape (count,)
        In ps; complete on every process, and the same for any number of them.
    """
    groups = min(count, comm.size)
    mine = comm.rank * groups // comm.size
    own = cast("Intracomm", comm.Split(mine, comm.rank))
    steps = np.zeros(count, np.int64)
    label = "simulating with other seeds" if show else ""
    with collective_errors(comm), show_progress(comm, label, count) as update:
        for number in range(mine, count, groups):
            run, _ = execute(prepared.sample(number), own, fold=fold)
            steps[number] = run.step_time
            update(min(count, (number // groups + 1) * groups))
    own.Free()
    return allreduce_max(steps, comm)


def sample_statements(steps: NDArray[np.int64]) -> dict[str, Any]:
    """Return mean and quantiles of sampled steps, as attributes of results.

    Returns
    -------
    dict
        ``sampled_steps`` (list of ps) and, in ps, ``sampled_mean``, ``sampled_p50``,
        ``sampled_p95`` and ``sampled_p99``. Quantiles are those of the sample itself (Hyndman and
        Fan's type 1: the smallest step that so many are not above).
    """
    found = np.quantile(steps, [q / 100 for q in QUANTILES], method="inverted_cdf")
    return {
        "sampled_steps": [int(step) for step in steps],
        "sampled_mean": float(steps.mean()),
        **{f"sampled_p{q}": float(value) for q, value in zip(QUANTILES, found, strict=True)},
    }
