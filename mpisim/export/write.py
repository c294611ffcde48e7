"""A run that was simulated again → a file or a folder of one of the formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..base.errors import InputError, UsageError
from ..base.files import check_output
from ..formats import rank_to_write, write_chakra, write_simai
from ..formats.chakra_write import check_folder
from ..mpi.parallel import collective_errors
from ..program import gather
from ..traces.export import check_export, export_kineto
from .events import EventsOfRanks
from .parts import Part, write_parts
from .perfetto import head_part, rank_part
from .ranks import ALL, Chosen
from .resimulate import ResimulatedRun
from .row_arguments import RowArguments
from .table import head_line, rank_lines

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["FORMATS", "check_destination", "export_run"]


class Format(NamedTuple):
    """A format of exported runs: its description, and whether it is a folder."""

    what: str
    is_folder: bool


FORMATS = {
    "chrome": Format("Kineto traces (Chrome's JSON), one a rank", True),
    "perfetto": Format("a Perfetto trace", False),
    "csv": Format("rows as a table", False),
    "chakra": Format("Chakra execution traces, one a rank", True),
    "simai": Format("a SimAI workload", False),
}
"""Formats by name."""

_PACKED_TRACES = (".json", ".json.gz")


def check_destination(format_: str, output: str | Path, *, overwrite: bool = False) -> None:
    """Refuse an output that cannot be written, before the work that makes it. Local.

    Parameters
    ----------
    format_ : str
        One of `FORMATS`.
    output : str or Path
    overwrite : bool
        Whether earlier exports may be replaced.

    Raises
    ------
    UsageError
        If it is no name for such an output.
    OutputError
        If it cannot be written, or is there already.
    """
    if format_ == "chrome" and str(output).endswith(_PACKED_TRACES):
        raise UsageError(
            f"{output}: Kineto traces are a file a rank; name a folder for them (--format perfetto "
            "writes all ranks to one file)"
        )
    if format_ == "chrome":
        check_export(output, overwrite=overwrite)
    elif format_ == "chakra":
        check_folder(output, overwrite=overwrite)
    else:
        check_output(output, overwrite=overwrite)


def export_run(
    source: ResimulatedRun,
    format_: str,
    output: str | Path,
    comm: Intracomm,
    chosen: Chosen,
    *,
    overwrite: bool = False,
) -> str:
    """Write a run to a file or a folder; return what the format changed, in words. **Collective.**

    Parameters
    ----------
    source : ResimulatedRun
    format_ : str
        One of `FORMATS`.
    output : str or Path
        A file, which process 0 sees; of ``chrome`` a folder that all processes see.
    comm : mpi4py.MPI.Intracomm
        The processes of the run.
    chosen : Chosen
        The ranks to write; ``chakra`` writes all, ``simai`` the pipeline stage of one rank, or of
        all the one that stands best for them.
    overwrite : bool
        Whether earlier exports may be replaced.

    Returns
    -------
    str
        On process 0; empty if it has everything as it was.

    Raises
    ------
    UsageError
        If the format cannot have these ranks alone.
    OutputError
        If it cannot be written; nothing is left behind.
    """
    if format_ == "chakra":
        _write_chakra(source, output, comm, chosen, overwrite)
        return ""
    if format_ == "simai":
        return _write_simai(source, output, comm, chosen, overwrite)
    events = EventsOfRanks(source, chosen.ranks)
    if format_ == "chrome":
        export_kineto(
            events.program,
            source.run,
            output,
            ranks=source.kept.numbers,
            chosen=frozenset(chosen.ranks),
            added=events.added,
            overwrite=overwrite,
            comm=comm,
        )
        return ""
    entry = {rank: i for i, rank in events.hosted()}
    makers = source.run.placement[chosen.ranks].tolist()
    if format_ == "perfetto":
        head, part = _perfetto(source, events, entry)
    else:
        head, part = _table(source, events, entry)
    write_parts(
        output,
        head,
        [(maker, part(rank)) for maker, rank in zip(makers, chosen.ranks, strict=True)],
        comm,
        overwrite=overwrite,
    )
    return ""


def _perfetto(
    source: ResimulatedRun, events: EventsOfRanks, entry: dict[int, int]
) -> tuple[Part, Callable[[int], Part]]:
    """Run → writers of a Perfetto trace: of its head, and of the part of each rank."""

    def part(rank: int) -> Part:
        return lambda: rank_part(
            events.rank(entry[rank]),
            source.run.rows(entry[rank]).wire,
            events.memory(entry[rank]),
            events.arrows(rank),
        )

    return lambda: head_part(events.path.pieces(), events.links, source.kept.numbers), part


def _table(
    source: ResimulatedRun, events: EventsOfRanks, entry: dict[int, int]
) -> tuple[Part, Callable[[int], Part]]:
    """Run → writers of a table: of its first line, and of the lines of each rank."""
    run, program, path = source.run, events.program, source.kept.critical_path

    def part(rank: int) -> Part:
        def lines() -> Iterator[bytes]:
            rows = run.rows(entry[rank])
            arguments = RowArguments(program, rank, rows, events.communications)
            critical = set() if path is None else set(path.row[path.rank == rank].tolist())
            return rank_lines(program, rank, source.kept.numbers[rank], rows, arguments, critical)

        return lines

    return lambda: [head_line()], part


def _write_chakra(
    source: ResimulatedRun, output: str | Path, comm: Intracomm, chosen: Chosen, overwrite: bool
) -> None:
    """Write the program of a run, with the durations that its kernels took. **Collective.**"""
    program = gather(source.run.program, comm)
    with collective_errors(comm):
        if len(chosen.ranks) < source.run.program.n_ranks:
            raise UsageError(
                f"--ranks: Chakra's traces are of all ranks, which communicate; give {ALL!r} or "
                "leave it out"
            )
        if comm.rank == 0 and program is not None:
            write_chakra(program, output, source.kept.path.stem, overwrite=overwrite)


def _write_simai(
    source: ResimulatedRun, output: str | Path, comm: Intracomm, chosen: Chosen, overwrite: bool
) -> str:
    """Write the layers of a pipeline stage with the times between its communications.

    **Collective.** Returns what SimAI does otherwise, on process 0.
    """
    how = ""
    program = gather(source.run.program, comm)
    rank = -1
    with collective_errors(comm):
        n = len(chosen.ranks)
        if 1 < n < source.run.program.n_ranks:
            raise UsageError(
                f"--ranks names {n} ranks; a SimAI workload has the layers of one pipeline stage: "
                "give one of its ranks, or leave it out"
            )
        if comm.rank == 0 and program is not None:
            with _naming(source.kept.path):
                rank = rank_to_write(program, chosen.ranks[0] if n == 1 else None)
    rank = comm.bcast(rank)
    hosted = source.run.hosted.tolist()
    mine = [source.run.rows(hosted.index(rank))] if rank in hosted else []
    found = comm.gather([np.stack([rows.wire, rows.end]) for rows in mine])
    with collective_errors(comm):
        if comm.rank == 0 and program is not None:
            assert found is not None  # on the root
            (times,) = (each for some in found for each in some)
            with _naming(source.kept.path):
                how = write_simai(program, output, times, rank=rank, overwrite=overwrite).how
    return how


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file whose program a format cannot have."""
    try:
        yield
    except InputError as error:
        if isinstance(error, UsageError):
            raise
        raise InputError(f"{path}: {error}") from error
