"""A page → one HTML file, whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.files import write_whole
from ..mpi.parallel import collective_errors
from ..results import Results
from .html import page_html
from .payload import run_payload
from .shown import ShownRun

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["write_page", "write_run_page"]


def write_page(payload: Mapping[str, Any], path: str | Path, *, overwrite: bool = False) -> None:
    """Write what a page shows as HTML. Local.

    Parameters
    ----------
    payload : mapping
        Of `mpisim.page.payload`.
    path : str or Path
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If it cannot be written; nothing is left behind.
    """
    contents = page_html(dict(payload)).encode("utf-8", "replace")
    with write_whole(path, overwrite=overwrite) as file:
        file.write(contents)


def write_run_page(
    results: Results | None,
    shown: ShownRun | None,
    path: str | Path,
    comm: Intracomm,
    *,
    why: str = "",
    name: str = "",
    overwrite: bool = False,
) -> None:
    """Write the page of a run. **Collective.**

    Parameters
    ----------
    results : Results or None
        On process 0; None on the others.
    shown : ShownRun or None
        The run, on all processes; without it the page has no timeline.
    path : str or Path
        On process 0.
    comm : mpi4py.MPI.Intracomm
        The processes of the run.
    why : str
        Why there is no run, if so.
    name : str
        What the run is called if it has no title.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If it cannot be written; nothing is left behind.
    """
    payload = run_payload(results, shown, comm, why=why, name=name)
    with collective_errors(comm):
        if payload is not None:
            write_page(payload, path, overwrite=overwrite)
