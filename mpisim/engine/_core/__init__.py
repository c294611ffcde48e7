"""The core: advances ranks over their rows until they block. The only way into compiled code.

The compiled modules (Cython: `tiles` with `hashes`; `contended` with `crew`, `meetings`, `bounds`,
`outcome` and `sharing`; `asked`, `registers`, `instructions`, `steps`, `rows`, `accounts`) and
their twins (plain Python, to be read first) do the same, and tests hold them equal row by row. No
other module knows that there are two. `refining` and `links` have none: what they work out is said,
and tested, in a line or two.

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
``core(name, contended)``
    The class ``Core`` of the compiled core ("compiled") or of the twin ("python"); where
    communications share links, that of `contended` or `contended_twin`.
``rows_functions(name)``
    ``rows_of``, which works out the rows of a rank after a run, and ``fingerprint``, which tells
    apart ranks that met others at different times.

``Ledger(order, stream_index, ...)``
    Adds up where the time of ranks of one table went, and what their rows took.
``vary(durations, rows, ...)``
    Durations of a rank whose kernels vary: see `mpisim.engine.duration_factors`.

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
from .rows import vary
from .steps import write_steps

__all__ = [
    "Ledger",
    "allocate",
    "asked",
    "by_end",
    "core",
    "depths",
    "full_links",
    "joined",
    "kernels_of",
    "multisets",
    "partition",
    "ranges",
    "rows_functions",
    "several_at_once",
    "vary",
    "write_instructions",
    "write_steps",
]


def core(name: str, contended: bool = False) -> Any:
    """Return the class of a core by name: "compiled" or "python"."""
    if name not in ("compiled", "python"):
        raise ValueError(f"core {name!r} is neither 'compiled' nor 'python'")
    if contended and name == "compiled":
        from .contended import Core
    elif contended:
        from .contended_twin import Core
    elif name == "compiled":
        from .tiles import Core
    else:
        from .twin import Core
    return Core


def rows_functions(name: str) -> tuple[Any, Any]:
    """Return `rows_of` and `fingerprint` of the core of that name."""
    if name == "compiled":
        from .rows import fingerprint, rows_of
    else:
        from .rows_twin import fingerprint, rows_of
    return rows_of, fingerprint
