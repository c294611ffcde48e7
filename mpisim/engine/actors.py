"""Lowering for the contended core: a table becomes what a rank's CPU and streams each do in order.

Where communications share links, nothing may be posted that lies before what has happened on the
links already. A rank is therefore split into *actors*, its CPU and each of its streams, which run
independently of each other as far as they can: what a stream posts does not have to wait until the
rank has come to that row in program order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..program import Table
from ._core import write_steps
from .contention import Contention
from .cost import Priced
from .lowering import Code
from .routes import Routes

__all__ = ["FLOW_GROUP", "STEP", "LoweredTables", "Script", "Traffic", "script"]

STEP = np.dtype(
    [
        ("host", np.int64),
        ("launch", np.int64),
        ("launch_cost", np.int64),
        ("gap", np.int64),
        ("stream", np.int32),  # of the script; -1: the CPU
        ("index", np.int32),  # how many kernels of the stream come before this row's
        ("slot", np.int32),
        ("ordinal", np.int32),
        ("first_wait", np.int32),  # into Script.waits
        ("n_waits", np.int32),
        ("queue", np.int32),  # kernel that must have left the launch queue, or -1
        ("n_rows", np.int32),  # of the kernel that begins here: JOINED rows count
        ("eager", np.int32),  # which of the table's EAGER rows this is, or -1
        ("opcode", np.int32),  # KERNEL, MEET, JOIN, HOST or HOST_WAIT
        ("keep", np.int32),  # which of the kernels this is that are read from afar, or -1
        ("reserved", np.int32),
    ]
)
"""One row for the contended core."""

FLOW_GROUP = np.dtype(
    [
        ("time", np.int64),  # latest ready time so far; once complete, the start
        ("end", np.int64),  # of the flow; before, the latest end of a flow that led to a post
        ("follow", np.int64),  # largest gap after the end of the group before, if promised
        ("bound", np.int64),  # while bounds are worked out
        ("last", np.int32),  # the rank that was ready at `time`, the lowest if several
        ("follower", np.int32),  # the rank with that gap, the lowest if several
        ("missing", np.int32),  # hosted members still to come; -1 once resolved, -2 while it flows
        ("away", np.int32),  # messages still to come from other processes
        ("waiter", np.int32),  # first stream (of all hosted ranks) that waits here, or -1
        ("route", np.int32),  # of the flow, or -1
        ("price", np.int32),  # of the flow, or -1
        ("owned", np.int32),  # whether other processes are to be told what becomes of it
        ("flow", np.int32),  # its number among active flows, or -1
        ("reserved", np.int32),
    ]
)
"""State of one group, which may be a flow."""

_NEAR = 2048
"""Rows: what is read from further back is kept by itself, not among the rank's last rows."""


@dataclass(frozen=True, eq=False)
class Script:
    """A table as the contended core executes it, shared by all ranks of the table.

    Attributes
    ----------
    steps : STEP, shape (n,)
    waits : int32
        Kernels (their first rows) that rows wait for.
    kernels : int32, shape (m,)
        First rows of kernels, stream by stream, in order.
    kernel_index : int64, shape (n_streams + 1,)
        Stream s has the kernels ``kernel_index[s]`` to ``kernel_index[s + 1]``.
    clock : int64, shape (n,)
        What the CPU spends on a row and all before it, waiting aside.
    near : int
        How many rows back rows read, but for kernels that are kept.
    n_kept : int
        How many of those there are.
    """

    steps: NDArray[np.void]
    waits: NDArray[np.int32]
    kernels: NDArray[np.int32]
    kernel_index: NDArray[np.int64]
    clock: NDArray[np.int64]
    near: int
    n_kept: int

    @property
    def n_streams(self) -> int:
        """Number of streams that have kernels."""
        return len(self.kernel_index) - 1

    def spans(self, duration: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how long kernels take, and they and all before them with their gaps.

        Parameters
        ----------
        duration : int64, shape (n,)
            Of each row.

        Returns
        -------
        int64, shape (2, m)
            In the order of `kernels`. Of the sums only differences within a stream mean anything.
        """
        first = np.sort(self.kernels)
        own = np.where(self.steps["stream"] >= 0, duration, 0)
        longest = np.maximum.reduceat(own, first) if len(first) else own
        span = longest[np.searchsorted(first, self.kernels)]
        return np.stack([span, np.cumsum(span + self.steps["gap"][self.kernels])])


@dataclass(frozen=True, eq=False)
class Traffic:
    """What the contended core needs beside a `Layout`.

    `p` is the number of prices of which flows may be, `s` that of slots of all hosted ranks.

    Attributes
    ----------
    scripts : list of Script
        One for each of the layout's codes.
    prices : list of int32 arrays
        For each of the layout's durations, the price of each row, or -1.
    latency, volume, rate, pattern : int64, shape (p,)
        See `mpisim.topo.Price`; patterns are those of the routes.
    routes : Routes
        Of the simulated ranks.
    slot_route, slot_n_routes : int32, shape (s,)
        The first route of the group bound to a slot, and the number of its routes.
    backwards : bool
        Some gap or launch latency is negative, so that what follows may begin before what led to
        it has ended.
    spans : list of int64 arrays
        For each of the layout's durations, see `Script.spans`. Empty if alone.
    alone : bool
        All flows are run here, and no other process takes part.
    """

    scripts: list[Script]
    prices: list[NDArray[np.int32]]
    latency: NDArray[np.int64]
    volume: NDArray[np.int64]
    rate: NDArray[np.int64]
    pattern: NDArray[np.int64]
    routes: Routes
    slot_route: NDArray[np.int32]
    slot_n_routes: NDArray[np.int32]
    backwards: bool
    spans: list[NDArray[np.int64]]
    alone: bool

    @classmethod
    def of(
        cls,
        routes: Routes,
        contention: Contention,
        codes: list[Code],
        code: NDArray[np.int32],
        priced: Priced,
        bound: NDArray[np.int64],
        alone: bool,
        known: dict[Table, Script],
    ) -> Traffic:
        """Collect it.

        Parameters
        ----------
        routes : Routes
            Of the simulated ranks.
        contention : Contention
        codes, code
            As in a layout.
        priced : Priced
            Of the hosted ranks.
        bound : int64, shape (s,)
            The group that each slot is bound to.
        alone : bool
        known : dict of Table to Script
            Scripts of earlier runs, to which this one adds: see `script`.
        """
        pattern = {pattern: i for i, pattern in enumerate(routes.patterns)}
        columns = np.array(
            [(p.latency, p.volume, p.rate, pattern[p.pattern]) for p in priced.known], np.int64
        ).reshape(-1, 4)
        latency, volume, rate, number = columns.T.copy()
        scripts = [script(one, known) for one in codes]
        spans = []
        if not alone:
            entry, rank = np.unique(priced.which, return_index=True)
            of_entry = dict(zip(entry.tolist(), code[rank].tolist()))
            spans = [scripts[of_entry[i]].spans(d) for i, d in enumerate(priced.durations)]
        first = np.searchsorted(routes.group, bound)
        count = np.searchsorted(routes.group, bound, side="right") - first
        return cls(
            scripts=scripts,
            prices=priced.prices,
            latency=latency,
            volume=volume,
            rate=rate,
            pattern=number,
            routes=routes,
            slot_route=first.astype(np.int32),
            slot_n_routes=count.astype(np.int32),
            backwards=contention.backwards,
            spans=spans,
            alone=alone,
        )


@dataclass(frozen=True, eq=False)
class LoweredTables:
    """What tables were translated to, by `Table.structure`: kept by a run's setup for later runs.

    Attributes
    ----------
    codes : dict of Table to Code
    scripts : dict of Table to Script
        Where communications share links.
    """

    codes: dict[Table, Code] = field(default_factory=dict)
    scripts: dict[Table, Script] = field(default_factory=dict)


def script(code: Code, scripts: dict[Table, Script]) -> Script:
    """Translate a table; `scripts` keeps one for all that differ in durations alone."""
    structure = code.table.structure
    if structure not in scripts:
        scripts[structure] = _translate(code)
    return scripts[structure]


def _translate(code: Code) -> Script:
    steps = np.empty(len(code.table), STEP)
    clock = np.empty(len(code.table), np.int64)
    waits, kernels, kernel_index, near, n_kept = write_steps(code, _NEAR, steps, clock)
    return Script(steps, waits, kernels, kernel_index, clock, near, n_kept)
