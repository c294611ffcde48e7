"""State of a blocked rank in the contended core → the row it waits at, for deadlock messages."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

__all__ = ["blocked_row"]


def blocked_row(
    lowered: Any,
    view: Any,
    slot_first: NDArray[Any],
    host_row: int,
    done: list[int],
    missing: NDArray[Any],
) -> tuple[int, int]:
    """Progress of a rank's CPU and streams → the row it is blocked at, and the communication.

    Parameters
    ----------
    lowered, view : LoweredTable, StreamView
        The rank's table: see `mpisim.engine.lowering`.
    slot_first : int64, shape (s,)
        Of each slot of the rank, the number of its first communication.
    host_row : int
        The row that the rank's CPU has come to.
    done : list of int
        How many kernels of each stream have ended.
    missing : int32, shape (n_communications,)
        Members still to post to each communication; -1 once it is resolved.

    Returns
    -------
    row : int
        The first in program order that cannot begin; the number of rows if all have begun.
    communication : int
        The one that this row waits for, or the first unresolved one that the rank has posted to;
        -1 if none.
    """
    instructions, entries = lowered.instructions, view.entries

    def unresolved(kernel: int) -> int:
        """The communication that a kernel waits for, which has begun, or -1."""
        for row in range(kernel + int(entries["n_rows"][kernel]) - 1, kernel - 1, -1):
            slot = int(instructions["slot"][row])
            if slot >= 0 and entries["eager"][row] < 0:
                number = int(slot_first[slot] + instructions["ordinal"][row])
                if missing[number] != -1:
                    return number
        return -1

    def ended(kernel: int) -> bool:
        return done[entries["stream"][kernel]] > entries["index"][kernel]

    # The kernel each stream has come to, -1 after its last.
    current = []
    for stream, n_ended in enumerate(done):
        at = int(view.kernel_index[stream]) + n_ended
        current.append(int(view.kernels[at]) if at < view.kernel_index[stream + 1] else -1)

    begun: list[int] = []
    for row, entry in enumerate(entries):
        if lowered.first[row] != row:  # JOINED: begins with its kernel
            continue
        reads = [] if entry["queue"] < 0 else [int(entry["queue"])]
        if entry["stream"] >= 0:
            if ended(row):
                continue
            if row != current[entry["stream"]]:  # it follows another
                reads.append(current[entry["stream"]])
        elif row < host_row:
            continue
        first = int(entry["first_wait"])
        reads += view.waits[first : first + int(instructions["n_waits"][row])].tolist()
        for kernel in reads:
            if not ended(kernel):
                return row, unresolved(kernel)
        if entry["stream"] >= 0:
            begun.append(row)
    return len(entries), next((n for n in map(unresolved, begun) if n >= 0), -1)
