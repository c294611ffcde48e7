"""A case through the engine, with the slowdown of what overlaps where it is modelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .. import engine
from ..mpi.parallel import agreed
from ..mpi.parallel import progress as show
from ..program import Program
from ..topo import Network
from .case import Case
from .program_case import ProgramCase

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..overlap import OverlapSummary

__all__ = ["execute"]


def execute(
    case: Case | ProgramCase | Program,
    comm: Intracomm,
    *,
    network: Network | None = None,
    contention: bool = True,
    fold: bool | None = None,
    critical_path: bool = False,
    progress: bool = False,
    timeline: bool = False,
    setup: engine.RunSetup | None = None,
) -> tuple[engine.Run, OverlapSummary | None]:
    """Run a case, or a program. **Collective.**

    Parameters
    ----------
    case : Case, ProgramCase or Program
    comm : mpi4py.MPI.Intracomm
    network : Network, optional
        In place of the case's.
    contention : bool
        Whether communications share the links of such a network; a case says so of its own.
    fold, critical_path, timeline : bool
        As for `mpisim.engine.simulate`.
    progress : bool
        Show progress, if a person is watching.
    setup : engine.RunSetup, optional
        Of an earlier run of the same tables, to be reused where valid.

    Returns
    -------
    run : Run
    overlap : OverlapSummary or None
        What slowed what overlaps, if that is modelled.
    """
    program = case if isinstance(case, Program) else case.program
    if network is None and not isinstance(case, Program):
        network, contention = case.network, case.experiment.network.contention

    passes = 0

    def run(
        program: Program,
        wire_delays: Sequence[NDArray[np.int64] | None] = (),
        last: bool = True,
        placement: NDArray[np.int32] | None = None,
    ) -> engine.Run:
        nonlocal setup, passes
        passes += 1
        label = "simulating" if passes == 1 else f"simulating, pass {passes}"
        # Runs that only tell what overlaps need not simulate every rank by itself, though the last
        # is to: the times are the same.
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
        )
        setup = found.setup if passes == 1 else setup  # later runs differ in durations alone
        return found

    if not isinstance(case, Case) or case.experiment.overlap.model == "off":
        return run(program), None

    from ..overlap import OverlapSummary, overlap_model, run_with_slowdown

    choice = case.experiment.overlap
    assert choice.model != "off"
    with show(comm, "working out what overlaps" if progress else ""):
        with agreed(comm):
            model = overlap_model(
                program,
                network or case.network,
                case.workload.pricings,
                case.workload.layout.gpu_of,
                choice,
                case.experiment.source,
            )
        outcome = run_with_slowdown(model, run, choice.model, comm, choice.passes)
    return outcome.run, OverlapSummary(model, outcome, choice.model)
