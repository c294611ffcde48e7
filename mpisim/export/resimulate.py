"""A results file → the run that it is of, simulated again.

A results file has the figures of a run, and with ``--timeline`` when rows began and ended; not what
they waited for, when the CPU called, nor what prices a communication. It has what the run was made
of (`Results.origin`), and runs are exact: the same input gives the same digest. So the rows are
made again rather than kept, which takes as long as the run did and no disk; a digest that differs
says that the input has changed since, and is an error.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..base.errors import InputError, UsageError
from ..base.frozen import frozen
from ..engine import Run, simulate
from ..engine.critical_path import CriticalPath
from ..experiment import Experiment, ProgramExperiment
from ..experiment.serialization import deserialize_any
from ..extrapolate.parallel_origin import GrownOrigin
from ..mpi.parallel import collective_errors
from ..prediction.execution import execute
from ..prediction.long_steps import long_step
from ..prediction.prepared import PreparedExperiment, prepare
from ..program import Program
from ..replay import ReplayOrigin, read_job, replay
from ..results import open_results
from ..results.link_use import LinkUse
from ..topo import Network
from .repriced import price_again

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..engine.repetition import Repetition
    from ..prediction.prepared_program import PreparedProgram

__all__ = ["Kept", "ResimulatedRun", "kept_experiment", "read_kept", "resimulate"]


class Kept(NamedTuple):
    """Contents of a results file that an export uses.

    Attributes
    ----------
    path : Path
    origin, digest, creator : str
        As of `Results`.
    numbers : list of int
        Number of each rank in its job; of a recording, as the files number them.
    critical_path : CriticalPath or None
        Of the step shown; times from the begin of the run.
    links : LinkUse
        Empty where no links were shared.
    step_time_ps : int
    """

    path: Path
    origin: str
    digest: str
    creator: str
    numbers: list[int]
    critical_path: CriticalPath | None
    links: LinkUse
    step_time_ps: int

    @property
    def inputs(self) -> list[str]:
        """Files and folders that the run was made of, besides the experiment's own."""
        if ReplayOrigin.is_text(self.origin):
            of = ReplayOrigin.read(self.origin, str(self.path))
            table = None if of.pricing is None else of.pricing.measured
            return [*of.paths, *([] if table is None else [table])]
        if GrownOrigin.is_text(self.origin):
            return list(GrownOrigin.read(self.origin, str(self.path)).paths)
        try:
            found = json.loads(self.origin)
            return [str(found["program"] or found["trace"]["trace"])]
        except (LookupError, TypeError, ValueError):  # an experiment; or damaged: see below
            return []

    def check_not_input(self, output: str | Path) -> None:
        """Refuse an output that would write over what the run was made of. Local.

        Parameters
        ----------
        output : str or Path
            A file or a folder.

        Raises
        ------
        UsageError
        """
        target = os.path.realpath(output)
        for path in self.inputs:
            real = os.path.realpath(path)
            if target == real or target.startswith(os.path.join(real, "")):
                raise UsageError(
                    f"{output}: would write over what {self.path} was made of, {path}; name "
                    "another file or folder"
                )


@frozen
class ResimulatedRun:
    """A run that was simulated again, and what its results file says of it.

    Attributes
    ----------
    kept : Kept
    run : Run
        As this process holds it.
    program : Program
        What was run; that of `run` may have another table for every rank whose kernels were slowed
        by what overlapped them.
    recorded : bool
        Whether it is a replay, or a job grown from recorded ranks.
    network : Network or None
        What priced communications without a duration.
    prepared : PreparedExperiment or None
        Of a model's step, with its layout.
    repetition : Repetition or None
        How the step follows from `run`, where that was allowed.
    """

    kept: Kept
    run: Run
    program: Program
    recorded: bool
    network: Network | None = None
    prepared: PreparedExperiment | None = None
    repetition: Repetition | None = None


def read_kept(path: str | Path, comm: Intracomm) -> Kept:
    """Results file → what it says of its run. **Collective.**

    Parameters
    ----------
    path : str or Path
        On process 0.
    comm : mpi4py.MPI.Intracomm

    Raises
    ------
    InputError
        If it is no results file, or does not say what it was made of.
    """
    kept: Kept | None = None
    with collective_errors(comm):
        if comm.rank == 0:
            kept = _kept(path)
    kept = comm.bcast(kept, root=0)
    assert kept is not None
    return kept


def kept_experiment(path: str | Path) -> Experiment | ProgramExperiment:
    """Results file → the experiment that it is of. Local.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    InputError
        If it does not say what it was made of, or is of a recording.
    """
    kept = _kept(path)
    if ReplayOrigin.is_text(kept.origin) or GrownOrigin.is_text(kept.origin):
        raise InputError(
            f"{path}: is of a recording, which mpisim replay --save-program step.h5 makes a "
            "program of"
        )
    return deserialize_any(kept.origin, str(path))


def resimulate(
    kept: Kept, comm: Intracomm, *, progress: bool = False, repeat: bool = False
) -> ResimulatedRun:
    """What a results file says of its run → the run. **Collective.**

    Parameters
    ----------
    kept : Kept
    comm : mpi4py.MPI.Intracomm
        The processes that share the work; as many as one likes.
    progress : bool
        Show progress, if a person is watching.
    repeat : bool
        Whether a step may follow from two shorter ones; `ResimulatedRun.run` is then the longer.

    Raises
    ------
    InputError
        If what it was made of is not there any more, or has changed.
    """
    recorded = ReplayOrigin.is_text(kept.origin) or GrownOrigin.is_text(kept.origin)
    network, prepared, found = None, None, None
    if recorded:
        again = _replayed if ReplayOrigin.is_text(kept.origin) else _grown
        run, network = again(kept, comm, progress)
        program = run.program
    else:
        with collective_errors(comm):
            experiment = deserialize_any(kept.origin, str(kept.path))
        if repeat and isinstance(experiment, Experiment):
            found = long_step(experiment, comm, progress=progress)
        if found is None:
            with collective_errors(comm):
                case = _prepared(experiment)
            # With its critical path, as `mpisim run`: one pass may depend on another's outcome.
            run, _ = execute(case, comm, critical_path=True, progress=progress)
        else:
            case, run = found.prepared, found.run
        network, program = case.network, case.program
        prepared = case if isinstance(case, PreparedExperiment) else None
    if run.digest != kept.digest:
        raise InputError(
            f"{kept.path}: was simulated again, and its digest is now {run.digest}, "
            f"not {kept.digest}: files that it was made of have changed since, or mpisim has (it "
            f"was written by {kept.creator}); run it again"
        )
    repetition = None if found is None else found.repetition
    return ResimulatedRun(kept, run, program, recorded, network, prepared, repetition)


def _kept(path: str | Path) -> Kept:
    with open_results(path) as results:
        if not results.origin:
            raise InputError(
                f"{path}: does not say what it was made of: it was written by an earlier mpisim, "
                "or by a program of yours; simulate it with mpisim run -o FILE"
            )
        return Kept(
            Path(path),
            results.origin,
            results.digest,
            results.creator,
            results.rank_numbers,
            results.critical_path,
            results.links,
            results.step_time_ps,
        )


def _prepared(
    experiment: Experiment | ProgramExperiment,
) -> PreparedExperiment | PreparedProgram:
    if isinstance(experiment, Experiment):
        return prepare(experiment)
    from ..extrapolate.prepare import prepare_workload

    return prepare_workload(experiment)


def _replayed(kept: Kept, comm: Intracomm, progress: bool) -> tuple[Run, Network | None]:
    of = ReplayOrigin.read(kept.origin, str(kept.path))
    try:
        job = read_job(of.paths, comm, allow_missing=of.allow_missing)
        network = None
        if of.pricing is not None:
            job, network, _, _ = price_again(job, comm, of.pricing)
        again = replay(job, comm, of.what, critical_path=True, progress=progress, network=network)
        return again.run, network
    except InputError as error:
        raise InputError(f"{kept.path}: {error}") from error


def _grown(kept: Kept, comm: Intracomm, progress: bool) -> tuple[Run, Network | None]:
    of = GrownOrigin.read(kept.origin, str(kept.path))
    try:
        found = of.grown(comm)
    except InputError as error:
        raise InputError(f"{kept.path}: {error}") from error
    run = simulate(
        found.program,
        comm,
        network=found.network,
        critical_path=True,
        progress="simulating" if progress else "",
    )
    return run, found.network
