"""The core: advances ranks over their rows until they block. The only way into compiled code.

The compiled modules (Cython: `advance`, `registers`, `contended`, `sharing`) and their twins
(plain Python, to be read first) do the same, and tests hold them equal row by row. No other module
knows that there are two.

``allocate(kernels, last_use)``
    Give every kernel a register that is free until the kernel's last reader has run.
``core(name, contended)``
    The class ``Core`` of the compiled core ("compiled") or of the twin ("python"); where
    communications share links, that of `contended` or `contended_twin`.

A ``Core(layout, record)`` has

``advance(budget)``
    Run all ranks that can move, until none can or about `budget` rows are done. Return whether
    some still can.
``outbox()``, ``n_posted``
    Groups to tell other processes about, since the last call; how many there are.
``message``, ``deliver(groups, ..., owned)``
    Which fields of a group a message carries; take in what other processes said about groups.
``finish()``
    Resolve what nobody waited for; return ends of ranks and the hash sum.
``unfinished``, ``rows_done``, ``rows()``, ``blocked()``
    How far ranks have come, and the groups they are blocked on.
``groups``, ``row_index``, ``begin``, ``end``, ``wire``, ``binding``
    What came out: all hosted ranks one after the other, rank i from ``row_index[i]``.

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

from .registers import allocate

__all__ = ["allocate", "core"]


def core(name: str, contended: bool = False) -> Any:
    """Return the class of a core by name: "compiled" or "python"."""
    if name not in ("compiled", "python"):
        raise ValueError(f"core {name!r} is neither 'compiled' nor 'python'")
    if contended and name == "compiled":
        from .contended import Core
    elif contended:
        from .contended_twin import Core
    elif name == "compiled":
        from .advance import Core
    else:
        from .twin import Core
    return Core
