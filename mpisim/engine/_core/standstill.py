"""Deadlock diagnostics of a contended run: the operation that each rank is blocked on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..plan import Layout

__all__ = ["stopped"]

MEET, JOIN = 3, 5  # of `mpisim.engine.lowering.Opcode`


def stopped(
    layout: Layout, local: int, host_row: int, done: list[int], missing: NDArray[Any]
) -> tuple[int, int]:
    """Say where a rank stands that cannot go on.

    Parameters
    ----------
    layout : Layout
    local : int
        The hosted rank.
    host_row : int
        The row that its CPU has come to.
    done : list of int
        How many kernels of each stream have ended.
    missing : int32, shape (n_groups,)
        See `mpisim.engine.actors.FLOW_GROUP`.

    Returns
    -------
    row : int
        The first in program order that cannot begin; the number of rows if all have begun.
    group : int
        The one that this row waits for, or the first of those that the rank is in; -1 if none.
    """
    assert layout.traffic is not None
    of_rank = layout.traffic.scripts[layout.code[local]]
    steps, n = of_rank.steps, len(of_rank.steps)

    def unresolved(kernel: int) -> int:
        """The group that a kernel waits for, which has begun, or -1."""
        for row in range(kernel + int(steps["n_rows"][kernel]) - 1, kernel - 1, -1):
            if steps["opcode"][row] in (MEET, JOIN) and steps["eager"][row] < 0:
                slot = layout.slot_index[local] + steps["slot"][row]
                group = int(layout.slot_group[slot] + steps["ordinal"][row])
                if missing[group] != -1:
                    return group
        return -1

    def ended(kernel: int) -> bool:
        return done[steps["stream"][kernel]] > steps["index"][kernel]

    pending = []
    for s in range(of_rank.n_streams):
        at = int(of_rank.kernel_index[s]) + done[s]
        if at < of_rank.kernel_index[s + 1]:
            pending.append(int(of_rank.kernels[at]))
    begun: list[int] = []
    for row in range(n):
        step = steps[row]
        if step["opcode"] == JOIN:
            continue
        reads = [] if step["queue"] < 0 else [int(step["queue"])]
        if step["stream"] >= 0:
            if ended(row):
                continue
            if row not in pending:  # it follows another
                at = int(of_rank.kernel_index[step["stream"]]) + done[step["stream"]]
                reads.append(int(of_rank.kernels[at]))
        elif row < host_row:
            continue
        first = int(step["first_wait"])
        reads += of_rank.waits[first : first + int(step["n_waits"])].tolist()
        for kernel in reads:
            if not ended(kernel):
                return row, unresolved(kernel)
        if step["stream"] >= 0:
            begun.append(row)
    return n, next((g for g in map(unresolved, begun) if g >= 0), -1)
