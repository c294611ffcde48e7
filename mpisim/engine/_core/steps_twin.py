"""A table for the contended core, in plain Python: what `steps` compiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .twin import HOST, JOIN

__all__ = ["view_streams"]


def view_streams(
    code: Any, near: int, steps: NDArray[Any], clocks: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], int, int]:
    """Fill in steps and clocks, and return what else a script holds.

    Parameters
    ----------
    code : mpisim.engine.lowering.LoweredTable
    near : int
        Rows: kernels that are read from further back are kept.
    steps : STREAM_ENTRY, shape (n,)
    clocks : int64, shape (n,)
        What the CPU spends on a row and all before it, waiting aside; in ps.

    Returns
    -------
    waits, kernels : int32
    kernel_index : int64
    near, n_kept : int
        As in `mpisim.engine.lowering.StreamView`.
    """
    table, instructions = code.table, code.instructions
    steps["queue"], steps["first_wait"] = code.queue_row, table.wait_index[:-1]
    steps["reserved"] = 0
    kept, distances = set(), [0]
    n_eager = now = 0
    by_stream: dict[int, list[int]] = {}
    waits = code.first[table.wait_row]
    for row, x in enumerate(instructions):
        y, opcode = steps[row], int(x["opcode"])
        y["n_rows"] = code.last[row] - row + 1
        y["eager"] = n_eager if x["eager"] else -1
        n_eager += bool(x["eager"])
        now += int(x["host"]) * (opcode != JOIN)
        now += int(x["launch_cost"]) * (opcode not in (JOIN, HOST))
        clocks[row] = now
        read = waits[slice(*table.wait_index[row : row + 2])].tolist()
        for kernel in [*read, *([int(y["queue"])] if y["queue"] >= 0 else [])]:
            if row - kernel > near:
                kept.add(kernel)
            else:
                distances.append(row - kernel)
        if opcode < JOIN:
            by_stream.setdefault(int(table.stream[row]), []).append(row)
    steps["keep"] = steps["stream"] = steps["index"] = -1
    for i, kernel in enumerate(sorted(kept)):
        steps["keep"][kernel] = i
    streams = [by_stream[stream] for stream in sorted(by_stream)]
    for i, kernels in enumerate(streams):
        for j, kernel in enumerate(kernels):
            steps["stream"][code.first == kernel] = i  # JOINED rows are their kernel's
            steps["index"][code.first == kernel] = j
    return (
        waits,
        np.array([kernel for kernels in streams for kernel in kernels], np.int32),
        np.cumsum([0, *map(len, streams)]),
        max(distances),
        len(kept),
    )
