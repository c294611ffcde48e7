"""The core: advances ranks over their rows until they block. The only way into compiled code.

The compiled modules (Cython) are `tiles` with `hashes`; `contended` with `crew`, `meetings`,
`bounds`, `outcome` and `sharing`; `asked`, `registers`, `instructions`, `steps`, `rows`,
`accounts`, `refining` and `links`. Tests compare them with plain references that share nothing with
them (tests/reference), row by row.

``asked(table)``, ``several_at_once(table)``
    Which prices the rows of a table ask for; on which slots they may do so at the same time.
``allocate(kernels, last_use)``
    Give every kernel a register that is free until the kernel's last reader has run.
``kernels_of(table)``, ``write_instructions(table, ...)``
    The kernels of a table and what they follow; the table as instructions.
``write_steps(code, ...)``
    The table for the contended core.
``by_end``, ``multisets``, ``partition``, ``ranges``
    Colour refinement's work on every edge: see `mpisim.engine.refine`.
``full_links(capacity, patterns, one_by_one)``, ``joined(group, link, ...)``
    Links that can be full, and groups that links join.
``depths(begin, end, order, index)``
    How long one or two of some intervals and more were under way.
``core(contended)``
    The class ``Core`` of `tiles`, or of `contended` where communications share links.
``rows_of(code, durations, start, met_start, met_end)``
    The rows of a rank after a run: begin, end, wire and binding of each, and the last CPU clock.
``fingerprint(met_start, met_end)``
    128 bits that differ for ranks of one table whose communications began or ended at other times.

``Ledger(order, stream_index, ...)``
    Adds up where the time of ranks of one table went, and what their rows took. Each row on the
    device is in one of the layers ``KERNEL``, ``COPY`` and ``WIRE``; what is ``WAITING`` is a
    communication before its last member is ready. ``COVERED`` lists the sets of layers whose union
    is measured.
``vary(durations, rows, ...)``
    Durations of a rank whose kernels vary: see `mpisim.engine.variation`.

A ``Core(layout)`` has

``advance(budget)``
    Run all ranks that can move, until none can or about `budget` rows are done. Return whether
    some still can.
``outbox()``, ``n_posted``
    Groups to tell other processes about, since the last call; how many there are.
``message``, ``deliver(groups, ..., owned)``
    Which fields of a group a message carries; take in what other processes said about groups.
``split()``
    When none can move: let ranks go on that are only held up by ranks that they run side by side
    with; return whether there were any. (Not where communications share links.)
``unfinished``, ``rows_done``, ``rows()``, ``blocked()``
    How far ranks have come, and the groups they are blocked on.
``finish()``
    After the run: ends of ranks and the hash sum.
``met(local)``
    After the run, of each communication of a rank, in the order of `Code.communications`: when its
    wire time began (EAGER: the own ready time) and when it ended for this member; int64.
``last(local)``
    Likewise, the number of the simulated rank that was ready last, the lowest if several are
    (EAGER: its own); int32. No record of rows is kept: `mpisim.engine.rows` finds them again.
``groups``
    State of the groups, by the names in `message`.

and where communications share links

``next_event()``, ``commit(until)``
    When the next flow arrives or ends; let that happen, and all until then.
``horizon(earliest)``
    A time before which no flow can arrive that ranks here have still to post.
``n_events``
    Arrivals and ends so far.

The callers are trusted: a layout was made by `mpisim.engine.plan` from a checked program, and
nothing here checks an index again.
"""

from __future__ import annotations

from typing import Any

from .accounts import Ledger
from .asked import asked, several_at_once
from .instructions import kernels_of, write_instructions
from .links import depths, full_links, joined
from .refining import by_end, multisets, partition, ranges
from .registers import allocate
from .rows import fingerprint, rows_of, vary
from .steps import write_steps

__all__ = [
    "COPY",
    "COVERED",
    "KERNEL",
    "WAITING",
    "WIRE",
    "Ledger",
    "allocate",
    "asked",
    "by_end",
    "core",
    "depths",
    "fingerprint",
    "full_links",
    "joined",
    "kernels_of",
    "multisets",
    "partition",
    "ranges",
    "rows_of",
    "several_at_once",
    "vary",
    "write_instructions",
    "write_steps",
]

KERNEL, COPY, WAITING, WIRE = 1, 2, 4, 8
"""Layers of `Ledger`."""

COVERED = (
    KERNEL,
    KERNEL | COPY,
    WAITING | WIRE,
    KERNEL | COPY | WIRE,
    KERNEL | COPY | WAITING | WIRE,
)
"""What a `Ledger` measures: the time in which a row of any of these layers was under way."""


def core(contended: bool) -> Any:
    """Return the class of the core; contended: for communications that share links."""
    if contended:
        from .contended import Core
    else:
        from .tiles import Core
    return Core
