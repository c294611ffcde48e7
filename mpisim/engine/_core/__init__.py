"""The core: advances ranks over their rows until they block. The only way into compiled code.

The compiled modules (Cython: `advance`, `registers`) and `twin` (plain Python, the one to read
first) do the same, and tests hold them equal row by row. No other module knows that there are two.

``allocate(kernels, last_use)``
    Give every kernel a register that is free until the kernel's last reader has run.
``core(name)``
    The class ``Core`` of the compiled core ("compiled") or of the twin ("python").

A ``Core(layout, record)`` has

``advance(budget)``
    Run all ranks that can move, until none can or about `budget` rows are done. Return whether
    some still can.
``outbox()``, ``n_posted``
    Groups to tell other processes about, since the last call; how many there are.
``deliver(groups, times, lasts, owned)``
    Take in what other processes said about groups.
``finish()``
    Resolve what nobody waited for; return ends of ranks and the hash sum.
``unfinished``, ``rows_done``, ``rows()``, ``blocked()``
    How far ranks have come, and the groups they are blocked on.
``groups``, ``row_index``, ``begin``, ``end``, ``wire``, ``binding``
    What came out: all hosted ranks one after the other, rank i from ``row_index[i]``.

The callers are trusted: a layout was made by `mpisim.engine.plan` from a checked program, and
nothing here checks an index again.
"""

from __future__ import annotations

from typing import Any

from .registers import allocate

__all__ = ["allocate", "core"]


def core(name: str) -> Any:
    """Return the class of a core by name: "compiled" or "python"."""
    if name == "compiled":
        from .advance import Core
    elif name == "python":
        from .twin import Core
    else:
        raise ValueError(f"core {name!r} is neither 'compiled' nor 'python'")
    return Core
