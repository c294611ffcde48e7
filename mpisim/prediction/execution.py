"""A case through the engine, with the slowdown of what overlaps where it is modelled."""

from __future__ import annotations

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

    from ..overlap import Overlap

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
) -> tuple[engine.Run, Overlap | None]:
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

    Returns
    -------
    run : Run
    overlap : Overlap or None
        What slowed what overlaps, if that is modelled.
    """
    program = case if isinstance(case, Program) else case.program
    if network is None and not isinstance(case, Program):
        network, contention = case.network, case.experiment.network.contention

    settled: engine.Settled | None = None
    passes = 0

    def run(program: Program, last: bool, placement: NDArray[np.int32] | None = None) -> engine.Run:
        nonlocal settled, passes
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
            settled=settled,
        )
        settled = settled or found.settled  # what comes later differs in times alone
        return found

    if not isinstance(case, Case) or case.experiment.overlap.model == "off":
        return run(program, True), None

    from ..overlap import Overlap, ranks_of, with_slowdown

    choice = case.experiment.overlap
    assert choice.model != "off"
    with show(comm, "working out what overlaps" if progress else ""):
        with agreed(comm):
            ranks = ranks_of(case, network or case.network)
        outcome = with_slowdown(ranks, run, choice.model, comm, choice.passes)
    return outcome.run, Overlap(ranks, outcome, choice.model)
