"""Writing a results file: all of it or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.files import check_output, write_whole
from ..base.hdf5 import build_file, write_attributes, write_column, write_texts
from ..engine.run import Run
from ..mpi.parallel import collective_errors, progress
from ..topo import Network
from . import layout
from .collect import collect, shared_names
from .results import Results
from .timeline import write_timeline

if TYPE_CHECKING:
    from h5py import File, Group
    from mpi4py.MPI import Intracomm

__all__ = ["write_results"]

OWN_ATTRIBUTES = frozenset(
    (
        "format",
        "format_version",
        "creator",
        "digest",
        "step_time",
        "seed",
        "experiment",
        "n_processes",
        "rounds",
        "mode",
        "recorded",
        "versions",
        "attributes",
        "wall",
        "said",
    )
)
"""Root attributes that the writer fills; `attributes` of callers may not have these names."""


def write_results(
    run: Run,
    path: str | Path,
    *,
    comm: Intracomm,
    timeline: bool = False,
    experiment: str = "",
    seed: int = 0,
    overwrite: bool = False,
    attributes: Mapping[str, Any] | None = None,
    network: Network | None = None,
    step: int | None = None,
) -> Results | None:
    """Write the result of a run to an HDF5 file.

    **Collective.** Process 0 writes one file; with a timeline the others send it their rows. The
    file appears when it is complete; an error leaves nothing behind and is raised on all.

    Parameters
    ----------
    run : Run
    path : str or Path
        In a folder that process 0 sees.
    comm : mpi4py.MPI.Intracomm
        The processes that simulated.
    timeline : bool
        Write every row too.
    experiment, seed, attributes, network, step
        See `collect`.
    overwrite : bool
        Whether an earlier result of that name may be replaced.

    Returns
    -------
    Results or None
        What was written, on process 0; None on the others.

    Raises
    ------
    OutputError
        If it cannot be written, or if there is a file of that name, be it one that another program
        made in the meantime, which is not to be replaced.
    InputError
        If an attribute has a name that the file needs itself.

    Examples
    --------
    >>> write_results(run, "run.h5", comm=comm, timeline=True)      # doctest: +SKIP
    >>> with mpisim.open_results("run.h5") as results:              # doctest: +SKIP
    ...     print(results.step_time, results.timeline.rank(0)["begin"])
    """
    taken = sorted(OWN_ATTRIBUTES.intersection(attributes or {}))
    if taken:
        raise InputError(f"attribute '{taken[0]}' belongs to the results file; name it otherwise")
    results = collect(
        run,
        comm=comm,
        experiment=experiment,
        seed=seed,
        attributes=attributes,
        network=network,
        step=step,
    )
    with collective_errors(comm):
        if results is not None:
            check_output(path, overwrite=overwrite)
    names, numbers = shared_names(run.program, comm) if timeline else ((), np.zeros(0, np.int64))
    # Complete in memory before a byte is written: all errors from here on are about the file.
    with ExitStack() as stack:
        file = image = None
        if results is not None:
            file, image = stack.enter_context(build_file(layout.FORMAT, layout.VERSION))
            _write_main(results, file)
        if timeline:
            write_timeline(run, results, file, names, numbers, comm)
        if file is not None:
            file.close()
        with progress(comm, f"writing {path}"), collective_errors(comm):
            if image is not None:
                with write_whole(path, overwrite=overwrite) as target:
                    target.write(image.getbuffer())
    return results


# --- the main file -------------------------------------------------------------------------------


def _write_main(results: Results, file: File) -> None:
    """Write everything but the timeline."""
    import h5py

    own = {
        "digest": results.digest,
        "step_time": results.step_time,
        "seed": results.seed,
        "experiment": results.experiment,
        "n_processes": results.n_processes,
        "rounds": results.rounds,
        "mode": results.mode,
        "recorded": True,  # of this version; some files had only the ends of ranks
    }
    versions = {**results.versions, "h5py": h5py.__version__, "HDF5": h5py.version.hdf5_version}
    for name, value in {**own, **results.attributes}.items():
        file.attrs[name] = _storable(value)
    file.attrs["said"] = [_storable(name) for name in results.attributes] or h5py.Empty("S1")
    for group, texts in (("versions", versions), ("program", results.program)):
        write_attributes(file.create_group(group), texts)
    wall = file.create_group("wall")
    for phase, seconds in results.wall.items():
        write_column(wall, phase, np.float64(seconds), "s")
    _write_summary(results, file.create_group("summary"))
    _write_table(file.create_group("ranks"), results.ranks, layout.RANKS)
    _write_table(file.create_group("classes"), results.classes, layout.CLASSES)
    _write_table(file.create_group("steps"), results.steps, layout.STEPS)
    _write_table(file.create_group("kernels"), results.kernels, layout.KERNELS)
    _write_table(file.create_group("communications"), results.communications, layout.COMMUNICATIONS)
    groups = file.create_group("communicators")
    write_column(groups, "index", results.communicators.index)
    write_column(groups, "members", results.communicators.members)
    write_texts(groups, "names", results.communicators.names)
    links = file.create_group("links")
    _write_table(links, results.links.links, layout.LINKS)
    links.create_dataset(
        "utilisation", data=results.links.utilisation, track_times=False, compression=1
    )
    _write_table(file.create_group("link_sharing"), results.links.sharing, layout.LINK_SHARING)
    if results.critical_path is not None:
        path = file.create_group("critical_path")
        columns = {
            column: getattr(results.critical_path, column) for column in layout.CRITICAL_PATH
        }
        _write_table(path, columns, layout.CRITICAL_PATH)
        write_texts(path, "names", results.critical_path.names)
    if results.recorded is not None:
        steps = file.create_group("recorded_steps")
        _write_table(
            steps,
            {c: getattr(results.recorded, c) for c in layout.RECORDED_STEPS},
            layout.RECORDED_STEPS,
        )
        write_column(steps, "shown", np.array([results.recorded.shown_step], np.int32))
        write_column(steps, "whole", np.array([results.recorded.whole_ps]), "ps")


def _write_summary(results: Results, group: Group) -> None:
    """Write the few numbers that most look for, for tools that know nothing else of the file."""
    write_column(group, "step_time", np.int64(results.step_time_ps), "ps")
    write_column(group, "step_time_seconds", results.step_time, "s")
    write_column(group, "n_ranks", results.n_ranks)
    write_column(group, "n_rows", results.ranks["rows"].sum())
    for column in ("compute", "exposed", "exposed_waiting", "exposed_wire", "idle"):
        write_column(
            group,
            f"mean_{column}_seconds",
            results.ranks[column].mean() * 1e-12,
            "s",
            "mean over ranks",
        )


def _write_table(
    group: Group, columns: Mapping[str, NDArray[Any]], described: layout.Layout
) -> None:
    for name, (stored, units) in described.items():
        if stored is object:
            write_texts(group, name, columns[name].tolist())
        else:
            write_column(group, name, columns[name], units, stored=stored)


def _storable(value: Any) -> Any:
    """Make an attribute of what callers say: text, number, or list of texts or of integers."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        import h5py

        if value and all(isinstance(each, int) for each in value):
            return np.array(value, np.int64)
        texts = [_storable(str(each)) for each in value]
        return np.array(texts, h5py.string_dtype("utf-8")) if texts else h5py.Empty("S1")
    return value if isinstance(value, int | float | np.generic) else _storable(str(value))
