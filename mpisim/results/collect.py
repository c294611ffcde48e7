"""Collecting: the parts of a run on all processes → one `Results` on process 0."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.distinct import dense
from ..base.errors import InputError
from ..base.quantity import PICOSECONDS
from ..base.version import __version__
from ..engine.flows import Flows
from ..engine.run import Run
from ..mpi.reductions import allreduce_any
from ..program import KEPT_STEP, Names, Operation, Program
from ..topo import Network
from ..topo.network import ExplainedNetwork, bus_factor
from .accounting import BREAKDOWN, Accounts, account, added_up
from .link_use import LinkUse, use_of_links
from .results import SECONDS, Results
from .sensitivities import Sensitivities
from .step_parts import PartLayout
from .step_times import account_step, path_of_step, rank_steps, step_of_job

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from ..engine.repetition import Repetition

__all__ = ["collect", "gathered", "limits", "shared_names"]

MAX_USUAL_SIZES = 4
"""Sizes of one kind of communications that are looked at all together."""


def collect(
    run: Run,
    *,
    comm: Intracomm,
    experiment: str = "",
    seed: int = 0,
    attributes: Mapping[str, Any] | None = None,
    network: Network | None = None,
    step: int | None = None,
    repetition: Repetition | None = None,
    sensitivities: Sensitivities | None = None,
    stated: Callable[[Results], Mapping[str, Any]] | None = None,
) -> Results | None:
    """Gather the result of a run.

    **Collective.**

    Parameters
    ----------
    run : Run
    comm : mpi4py.MPI.Intracomm
        The processes that simulated.
    experiment : str
        The text that describes the experiment.
    seed : int
    attributes : mapping of str to text, number or list of texts
        Further attributes of the result: assumptions, uncertainty.
    network : Network, optional
        The network that priced communications; it tells what limits them.
    step : int, optional
        Of a recorded program, the step that the result is about; by default the last.
    repetition : Repetition, optional
        How `run` follows from those of two shorter steps, if it does.
    sensitivities : Sensitivities, optional
        What the step time depends on; on process 0.
    stated : callable, optional
        Result → further attributes, which follow from it; called on process 0.

    Returns
    -------
    Results or None
        The result on process 0, None on the others.

    Raises
    ------
    InputError
        If a recorded program has no such step; if the time of all ranks is too long for totals.
    """
    program = run.program
    _check_totals(run)
    recorded = step_of_job(program, run, comm, step)
    names, numbers = shared_names(program, comm)

    layout = PartLayout.of(program)
    path = run.critical_path
    if recorded is None:
        accounts = _accounts(run, repetition, numbers, len(names), layout)
    else:
        accounts = account_step(run, numbers, len(names), layout, recorded)
        path = None if path is None else path_of_step(run, recorded)
    if path is not None and repetition is not None:
        path = repetition.whole_path(path)
    rows = _rows(run, repetition)
    ranks = gathered(np.concatenate([rows, accounts.breakdown], axis=1), comm)
    of_class = run.classes.of_rank[run.hosted[run.simulated]].astype(np.int64)
    parts = gathered(np.concatenate([of_class[:, None], accounts.parts], axis=1), comm)
    kernels = gathered(accounts.kernels, comm)
    communications = gathered(accounts.communications, comm)
    steps = gathered(_steps(run, repetition), comm)
    links = _links(run, repetition, comm)
    if ranks is None or parts is None or kernels is None:
        return None
    if communications is None or steps is None or links is None:
        return None

    of_rank = _by_column(ranks[np.argsort(ranks[:, 0])], "rank", "rows", *BREAKDOWN)
    del of_rank["rank"]
    results = Results(
        step_time_ps=int(run.step_time) if recorded is None else recorded.recorded.mean_ps,
        digest=run.digest,
        n_processes=comm.size,
        rounds=run.rounds,
        mode=run.mode,
        ranks={
            "end": run.rank_end if recorded is None else recorded.ends,
            "process": run.placement,
            "class": run.classes.of_rank,
            **of_rank,
        },
        classes=_class_table(run),
        steps=_by_column(steps[np.lexsort((steps[:, 1], steps[:, 0]))], "rank", "step", "duration"),
        kernels=_kernel_table(kernels, names),
        communications=_communication_table(communications, program, network),
        communicators=program.communicators,
        links=links,
        critical_path=path,
        recorded=None if recorded is None else recorded.recorded,
        parts=layout.step_parts(parts[np.argsort(parts[:, 0]), 1:]),
        sensitivities=sensitivities,
        experiment=experiment,
        seed=seed,
        creator=f"mpisim {__version__}",
        versions=_versions(),
        attributes=dict(attributes or {}),
        program={key: text for key, text in program.attributes.items() if key != KEPT_STEP},
        wall=dict(run.wall),
    )
    if stated is None:
        return results
    return replace(results, attributes={**results.attributes, **stated(results)})


def _class_table(run: Run) -> dict[str, NDArray[Any]]:
    """Return the equivalence classes of ranks, and what the ranks of each have in common."""
    classes, program = run.classes, run.program
    representative = classes.representative
    return {
        "representative": representative,
        "count": classes.count,
        "apart": classes.split_reason,
        "table": program.table[representative],
        "speed": program.speed[representative],
        "start": program.start[representative],
    }


def _accounts(
    run: Run,
    repetition: Repetition | None,
    names: NDArray[np.int64],
    n_names: int,
    layout: PartLayout,
) -> Accounts:
    """Return the accounts of all ranks hosted here: see `account`."""
    if repetition is None:
        return account(run, names, n_names, layout)
    one, other = repetition.shorter, repetition.longer
    shorter = account(one, names, n_names, PartLayout.of(one.program))
    longer = account(other, names, n_names, layout)
    kernels = repetition.sums(shorter.kernels, longer.kernels)
    kernels[:, 4] = longer.kernels[:, 4]  # the longest of each is in there
    return Accounts(
        repetition.sums(shorter.breakdown, longer.breakdown),
        kernels,
        repetition.sums(shorter.communications, longer.communications),
        repetition.sums(shorter.parts[one.simulated_by[other.simulated]], longer.parts),
    )


def _check_totals(run: Run) -> None:
    """Refuse runs in which the ps of all ranks together, as of one kernel, are beyond int64."""
    n, step = run.program.n_ranks, int(run.step_time)
    if n * step >= 2**63:
        raise InputError(
            f"the step takes {n:,} ranks {step / PICOSECONDS:,.1f} s each, together more than the "
            f"{2**63 / PICOSECONDS:,.0f} s that totals over ranks can hold; take fewer "
            "micro-batches (plan.global_batch) or fewer ranks"
        )


def _rows(run: Run, repetition: Repetition | None) -> NDArray[np.int64]:
    """Return rank and number of rows of all ranks hosted here, shape (h, 2)."""
    program = run.program
    lengths = np.array([0 if table is None else len(table) for table in program.tables], np.int64)
    rows = lengths[program.table[run.hosted]]
    if repetition is not None:
        rows += repetition.times * repetition.window.n_rows[run.hosted]
    return np.stack([run.hosted.astype(np.int64), rows], axis=1)


def _steps(run: Run, repetition: Repetition | None) -> NDArray[np.int64]:
    """Return rank, step and its duration, of all ranks hosted here: see `rank_steps`."""
    if repetition is None:
        return rank_steps(run.program, run)
    return repetition.sums(
        *(rank_steps(each.program, each) for each in (repetition.shorter, repetition.longer))
    )


def _links(run: Run, repetition: Repetition | None, comm: Intracomm) -> LinkUse | None:
    """Add up the use of links, on process 0. **Collective.**"""
    if run.shared is None:
        return LinkUse.none()
    own = run.shared.flows
    columns = (own.route, own.begin, own.end, own.volume)  # one by one: there may be many flows
    found = [gathered(column[:, None], comm) for column in columns]
    whole = [column[:, 0] for column in found if column is not None]
    if not whole:
        return None
    return use_of_links(run.shared, Flows(*whole), run.step_time, repetition)


def shared_names(program: Program, comm: Intracomm) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Number the row names, equally on all processes. **Collective.**

    Parameters
    ----------
    program : Program
        Whole, or partial with the names of this process alone.
    comm : mpi4py.MPI.Intracomm

    Returns
    -------
    names : tuple of str
        Of all processes, each text once.
    numbers : int64, shape (len(program.names),)
        Index into `names` of each name of this process.
    """
    if comm.size > 1 and allreduce_any(program.is_partial, comm):
        known = Names()
        for texts in comm.allgather(program.names):
            for text in texts:
                known[text]
        return tuple(known), np.array([known[text] for text in program.names], np.int64)
    return program.names, np.arange(len(program.names), dtype=np.int64)


def gathered(rows: NDArray[np.int64], comm: Intracomm) -> NDArray[np.int64] | None:
    """Join the rows of all processes on process 0, in the order of processes. **Collective.**

    Parameters
    ----------
    rows : int64, shape (n, k)
        `k` is the same on all processes, `n` need not be.

    Returns
    -------
    int64, shape (sum of n, k), or None
        None on processes other than 0.
    """
    if comm.size == 1:
        return rows
    sizes = np.zeros(comm.size, np.int64)
    comm.Gather(np.array([rows.size], np.int64), sizes, root=0)
    everything = np.zeros((int(sizes.sum()) // rows.shape[1], rows.shape[1]), np.int64)
    comm.Gatherv(np.ascontiguousarray(rows), [everything, sizes], root=0)
    return everything if comm.rank == 0 else None


def _by_column(rows: NDArray[np.int64], *columns: str) -> dict[str, NDArray[Any]]:
    return dict(zip(columns, np.ascontiguousarray(rows.T), strict=True))


def _kernel_table(rows: NDArray[np.int64], names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Join `Accounts.kernels` of all processes."""
    keys, number = np.unique(rows[:, :2], axis=0, return_inverse=True)
    longest = np.zeros(len(keys), np.int64)
    np.maximum.at(longest, number.reshape(-1), rows[:, 4])
    kind, name, count, total = added_up(rows[:, :4]).T
    order = np.lexsort((name, kind, -total))
    return {
        "name": np.array([names[i] for i in name[order].tolist()], object),
        "kind": kind[order].astype(np.uint8),
        "count": count[order],
        "total": total[order],
        "longest": longest[order],
    }


def _communication_table(
    rows: NDArray[np.int64], program: Program, network: Network | None
) -> dict[str, NDArray[Any]]:
    """Join `Accounts.communications` of all processes."""
    communicator, operation, members, wire, waiting, known, size, known_wire = added_up(rows).T
    group = program.communicators.sizes[communicator]
    count = members // np.maximum(group, 1)
    # Members may bring different sizes, or some none: the mean of those that are known counts.
    # That is size * count // known, but for products too large for int64.
    whole, rest = np.divmod(size, np.maximum(known, 1))
    bytes_ = np.where(known > 0, whole * count + rest * count // np.maximum(known, 1), -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        bandwidth = np.where((known > 0) & (known_wire > 0), size / (known_wire * SECONDS), np.nan)
    # They are in the order of communicators and operations.
    order = np.argsort(-(wire + waiting), kind="stable")
    columns = {
        "communicator": communicator.astype(np.int32),
        "operation": operation.astype(np.uint8),
        "size": group,
        "count": count,
        "bytes": bytes_,
        "wire": wire,
        "waiting": waiting,
        "bandwidth": bandwidth,
        "bus_bandwidth": bandwidth * _bus_factors(operation, group),
        "limit": limits(program, network, communicator, operation, bytes_ // np.maximum(count, 1)),
    }
    return {column: values[order] for column, values in columns.items()}


def limits(
    program: Program,
    network: Network | None,
    communicator: NDArray[np.int64],
    operation: NDArray[np.int64],
    size: NDArray[np.int64],
) -> NDArray[np.object_]:
    """Return what limits communications, alone on the network, as texts. Local.

    Parameters
    ----------
    program : Program
    network : Network or None
        All texts are empty unless it is an `ExplainedNetwork`.
    communicator, operation : int64, shape (n,)
    size : int64, shape (n,)
        Bytes, or -1 where it is not known.

    Returns
    -------
    object, shape (n,)
        Empty for what the network does not price.
    """
    found = np.full(len(communicator), "", object)
    if network is None or not isinstance(network, ExplainedNetwork):
        return found
    groups = program.communicators
    done = np.zeros(len(groups), np.int64)
    np.bitwise_or.at(done, communicator, np.int64(1) << operation)
    label, classes = network.group_classes(groups.index, groups.members, done)
    known: dict[tuple[int, int, int], str] = {}

    def limit_at(i: int) -> str:
        key = int(operation[i]), int(size[i]), int(label[communicator[i]])
        if key not in known:
            number, bytes_, which = key
            priced = bytes_ >= 0 and number not in (Operation.NONE, Operation.UNKNOWN)
            known[key] = (
                network.limit_of(Operation(number), bytes_, classes[which]) if priced else ""
            )
        return known[key]

    kind, n_kinds = dense(label[communicator] * 256 + operation)
    rest = np.arange(len(kind))
    for _ in range(MAX_USUAL_SIZES):
        # Most communications of one operation in groups of one class have one of few sizes.
        usual = np.full(n_kinds, -1)
        usual[kind[rest]] = rest
        at = usual[kind[rest]]
        same = size[rest] == size[at]
        texts = np.full(n_kinds, "", object)
        texts[usual >= 0] = [*map(limit_at, usual[usual >= 0].tolist())]
        found[rest[same]] = texts[kind[rest[same]]]
        rest = rest[~same]
    found[rest] = [*map(limit_at, rest.tolist())]
    return found


def _bus_factors(operation: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return bus bandwidth over algorithm bandwidth of some operations; NaN: nothing is sent."""
    key, which = np.unique(ranks * 256 + operation, return_inverse=True)
    found = [
        np.nan
        if kind in (Operation.NONE, Operation.UNKNOWN)
        else bus_factor(Operation(kind), size) or np.nan
        for size, kind in zip(*(each.tolist() for each in np.divmod(key, 256)), strict=True)
    ]
    return np.array(found, np.float64)[which]


def _versions() -> dict[str, str]:
    versions = {"mpisim": __version__, "numpy": np.__version__}
    if "mpi4py.MPI" in sys.modules:  # not loaded for its version
        from ..mpi.library import library_name

        versions["MPI"] = library_name()
    return versions
