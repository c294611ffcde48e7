"""Program, what-if changes → the program with other durations, CPU times or start times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..mpi.parallel import collective_errors
from ..mpi.reductions import allreduce_sum
from ..program import Program, Table

__all__ = ["WhatIf", "apply_what_if"]

_MAX_TIME = 1 << 60
"""Longest time a run can count, in ps: 13 days."""


@frozen
class WhatIf:
    """Changes to the times of a program; the default changes nothing.

    Attributes
    ----------
    compute, comm, host : float
        Factors on the durations of kernels and copies, on the wire times of communications, and on
        CPU times (work between calls, launching calls, tails of waits).
    kernels : sequence of (pattern, factor)
        Factors on rows whose name matches a shell pattern (``*gemm*``), on top of the others.
    delay : mapping of int to float
        Seconds by which ranks start late, by global rank.
    cap_host_gap : float or None
        CPU time before a call is cut to this many seconds, on all ranks.
    cap_rank_gap : mapping of int to float
        The same on single ranks, by global rank; it takes the place of `cap_host_gap` there.
    """

    compute: float = 1.0
    comm: float = 1.0
    host: float = 1.0
    kernels: Sequence[tuple[str, float]] = ()
    delay: Mapping[int, float] = field(default_factory=dict)
    cap_host_gap: float | None = None
    cap_rank_gap: Mapping[int, float] = field(default_factory=dict)

    def describe(self) -> list[str]:
        """Return each change in words, for reports."""
        lines = [
            f"{what} times × {factor:g}"
            for what, factor in (
                ("kernel and copy", self.compute),
                ("communication wire", self.comm),
                ("CPU", self.host),
            )
            if factor != 1.0
        ]
        lines += [f"rows named {pattern!r} × {factor:g}" for pattern, factor in self.kernels]
        lines += [f"rank {rank} starts {late:g} s late" for rank, late in self.delay.items()]
        if self.cap_host_gap is not None:
            lines.append(f"CPU gaps longer than {self.cap_host_gap:g} s are cut to that")
        lines += [
            f"CPU gaps of rank {rank} longer than {cap:g} s are cut to that"
            for rank, cap in self.cap_rank_gap.items()
        ]
        return lines


def apply_what_if(
    program: Program, what: WhatIf, ranks: Sequence[int], comm: Any = None
) -> Program:
    """Program → the same with changed times. **Collective** if `comm` is given.

    Parameters
    ----------
    program : Program
        Whole or partial.
    what : WhatIf
    ranks : sequence of int
        Global rank of every simulated rank, for `delay` and `cap_rank_gap`.
    comm : mpi4py.MPI.Comm, optional
        The processes that hold parts of the program.

    Raises
    ------
    InputError
        If a rank is not in the program, a pattern matches no row, or a time becomes too long.
    """
    number = {rank: i for i, rank in enumerate(ranks)}
    for rank in (*what.delay, *what.cap_rank_gap):
        if rank not in number:
            raise InputError(
                f"rank {rank} is not in this program; its ranks are {_list_of(list(number))}"
            )
    _check_patterns(program, what, comm)
    caps = {number[rank]: cap for rank, cap in what.cap_rank_gap.items()}
    tables: list[Table | None] = []
    table_of: dict[tuple[int, float | None], int] = {}
    use = np.empty(program.n_ranks, np.int32)
    with nullcontext() if comm is None else collective_errors(comm):
        for rank, source in enumerate(program.table.tolist()):
            cap = caps.get(rank, what.cap_host_gap)
            if (source, cap) not in table_of:
                table_of[source, cap] = len(tables)
                table = program.tables[source]
                tables.append(None if table is None else _changed(table, program.names, what, cap))
            use[rank] = table_of[source, cap]
    start = program.start.copy()
    for rank, late in what.delay.items():
        if late * 1e12 > _MAX_TIME:
            raise InputError(
                f"rank {rank} is to start {late:g} s late; at most {_MAX_TIME * 1e-12:.3g} s is "
                "possible"
            )
        start[number[rank]] += round(late * 1e12)
    return program.replace(tables=tuple(tables), table=use, start=start)


def _check_patterns(program: Program, what: WhatIf, comm: Any) -> None:
    """Refuse patterns that match no row of any rank."""
    matched = np.array(
        [any(fnmatchcase(name, pattern) for name in program.names) for pattern, _ in what.kernels],
        np.int64,
    )
    if comm is not None and len(matched):
        matched = allreduce_sum(matched, comm)
    for (pattern, _), hits in zip(what.kernels, matched.tolist(), strict=True):
        if not hits:
            raise InputError(
                f"no kernel name matches {pattern!r} "
                "(shell pattern over the whole name: use *gemm* for a part)"
            )


def _changed(table: Table, names: tuple[str, ...], what: WhatIf, cap: float | None) -> Table:
    """Table → the same with changed times, each rounded once."""
    factor = np.where(table.is_communication, what.comm, np.where(table.is_device, what.compute, 1))
    for pattern, times in what.kernels:
        hit = np.array([fnmatchcase(name, pattern) for name in names], bool)
        factor = np.where(hit[table.name] & table.is_device, factor * times, factor)
    host = table.host if cap is None else np.minimum(table.host, round(min(cap * 1e12, _MAX_TIME)))
    scale = np.full(len(table), what.host)
    return table.replace(
        duration=np.where(table.duration < 0, table.duration, _scaled(table.duration, factor)),
        host=_scaled(host, scale),
        launch_cost=_scaled(table.launch_cost, scale),
    )


def _scaled(times: NDArray[np.int64], factor: NDArray[np.float64]) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):
        longer = np.rint(times * factor)
    if longer.max(initial=0) > _MAX_TIME:
        raise InputError(
            f"a factor of {factor[np.argmax(longer)]:g} makes a time of "
            f"{times[np.argmax(longer)] * 1e-12:.3g} s longer than the {_MAX_TIME * 1e-12:.3g} s "
            "that a run can count"
        )
    return np.where(factor == 1.0, times, longer).astype(np.int64)


def _list_of(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f", … {ranks[-1]}" if len(ranks) > 8 else "")
