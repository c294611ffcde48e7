"""A job's program with its optimizer sharded over the replicas, or no longer.

The sharding is that of Megatron-LM's distributed optimizer.

Sharded, gradients are reduced to shards (a reduce-scatter in place of each all-reduce, of the same
buffer), each replica updates its own, and the parameters are gathered behind the optimizer, as
Megatron-LM does without ``--overlap-param-gather``. The kernels between the last reduction of a
step and its end take their share of the time. The other way round reductions become whole, nothing
is gathered, and these kernels do the work of all shards.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..program import COLUMNS, UNPRICED, Kind, Operation, Program, Table
from .parallel_axes import bulk_rows
from .parallel_shards import sharded_rows, share_of_time
from .parallel_structure import ParallelStructure

__all__ = ["with_distributed_optimizer"]

FP32, HALF = re.compile(r"f32|float(?!16)", re.I), re.compile(r"bf16|f16|half|float16", re.I)
"""Number formats in names of NCCL's kernels."""


def with_distributed_optimizer(
    program: Program, structure: ParallelStructure, on: bool, floor: int
) -> tuple[Program, str]:
    """Switch the distributed optimizer on or off. Local.

    Parameters
    ----------
    program : Program
        Whole, as recorded.
    structure : ParallelStructure
        Of this program.
    on : bool
    floor : int
        Time of a kernel of the optimizer besides its work, in ps.

    Returns
    -------
    Program
        The same if it is so already.
    str
        What was assumed.

    Raises
    ------
    InputError
        If gradients are not reduced over replicas, or in another way.
    """
    along = structure.axis("dp")
    carried = structure.carried("dp")
    reduces = Operation.ALL_REDUCE if on else Operation.REDUCE_SCATTER
    already = Operation.REDUCE_SCATTER if on else Operation.ALL_REDUCE
    if along is None or reduces not in carried:
        if already in carried:
            return program, ""
        raise InputError(
            f"--distributed-optimizer: no gradients are reduced along dp of {structure.text}; "
            "--layout names the axes"
        )
    if on and Operation.ALL_GATHER in carried:
        raise InputError(
            "--distributed-optimizer on: parameters are gathered along dp already (ZeRO)"
        )
    layered = _gathered_in_layers(program, structure, along)
    if not on and layered:
        raise InputError(
            "--distributed-optimizer off: parameters are gathered more often than gradients are "
            "reduced, as FSDP does; what ranks without shards would do cannot be told"
        )
    share = 1 / structure.axes[along].size if on else float(structure.axes[along].size)
    half = any(HALF.search(name) for name in _communication_names(program))
    tables = []
    for rank in range(program.n_ranks):
        table = program.table_of(rank)
        slots = [
            slot
            for slot, c in enumerate(program.slots_of(rank).tolist())
            if structure.spans[c, along]
        ]
        duration = share_of_time(table, sharded_rows(table, slots), share, floor)
        table = table.replace(duration=duration)
        change = _sharded if on else _whole
        tables.append(change(table, slots, program.names, half))
    changed = program.replace(
        tables=tuple(tables), table=np.arange(program.n_ranks, dtype=np.int32)
    )
    if not on:
        return changed, (
            "gradients all-reduced in place of a reduce-scatter; parameters no longer gathered; "
            f"kernels behind the last reduction of a step take {share:.0f} times their time"
        )
    width = "16-bit parameters for fp32 gradients" if half else "as large as gradients"
    return changed, (
        "gradients reduced to shards in place of an all-reduce; parameters gathered behind the "
        f"optimizer, without overlap ({width}); kernels behind the last reduction of a step take "
        f"1/{structure.axes[along].size} of their time"
    )


def _gathered_in_layers(program: Program, structure: ParallelStructure, along: int) -> bool:
    """Whether some rank gathers parameters more often than it reduces gradients."""
    for rank in range(program.n_ranks):
        table = program.table_of(rank)
        for slot, c in enumerate(program.slots_of(rank).tolist()):
            if structure.spans[c, along]:
                rows = _large(table, [slot])
                kinds = table.operation[rows]
                gathers = int((kinds == Operation.ALL_GATHER).sum())
                if gathers > int((kinds == Operation.REDUCE_SCATTER).sum()) + 1:
                    return True
    return False


def _communication_names(program: Program) -> set[str]:
    found: set[int] = set()
    for table in program.tables:
        assert table is not None
        found.update(table.name[table.is_communication].tolist())
    return {program.names[i] for i in found}


def _large(table: Table, slots: list[int]) -> NDArray[np.intp]:
    """Rows of communications on some slots that carry gradients or parameters."""
    return bulk_rows(table, np.flatnonzero(np.isin(table.slot, slots)))


def _whole(table: Table, slots: list[int], names: tuple[str, ...], half: bool) -> Table:
    """Reductions of everything; gathers that carry nothing and take no time."""
    rows = _large(table, slots)
    reduces = rows[table.operation[rows] == Operation.REDUCE_SCATTER]
    gathers = rows[table.operation[rows] == Operation.ALL_GATHER]
    operation, duration, size = table.operation.copy(), table.duration.copy(), table.bytes.copy()
    operation[reduces], duration[reduces] = Operation.ALL_REDUCE, UNPRICED
    duration[gathers], size[gathers] = 0, 0
    return table.replace(operation=operation, duration=duration, bytes=size)


def _sharded(table: Table, slots: list[int], names: tuple[str, ...], half: bool) -> Table:
    """Reductions to shards, and a gather of each buffer behind the last kernel of the step."""
    rows = _large(table, slots)
    rows = rows[table.operation[rows] == Operation.ALL_REDUCE]
    operation, duration = table.operation.copy(), table.duration.copy()
    operation[rows], duration[rows] = Operation.REDUCE_SCATTER, UNPRICED
    table = table.replace(operation=operation, duration=duration)
    # The last step first: rows before it keep their numbers.
    for step in sorted(np.unique(table.step[rows]).tolist(), reverse=True):
        own = rows[table.step[rows] == step]
        here = table.step == step
        kernels = np.flatnonzero(here & (table.kind == Kind.KERNEL))
        others = np.flatnonzero(here & np.isin(table.slot, slots))
        at = int(max(kernels.max(), others.max())) + 1
        table = _with_gathers(table, own, at, int(kernels.max()), names, half)
    return table


def _with_gathers(
    table: Table, like: NDArray[np.intp], at: int, after: int, names: tuple[str, ...], half: bool
) -> Table:
    """Insert an all-gather for each of some reductions, in front of row `at`.

    They wait for row `after`, and the next kernel of that row's stream waits for them.
    """
    n = len(like)
    columns: dict[str, Any] = {
        name: np.insert(getattr(table, name), at, getattr(table, name)[like]) for name in COLUMNS
    }
    new = slice(at, at + n)
    fp32 = np.array([bool(FP32.search(names[i])) for i in table.name[like]])
    columns["bytes"][new] //= np.where(half & fp32, 2, 1)
    columns["operation"][new] = Operation.ALL_GATHER
    columns["duration"][new] = UNPRICED
    columns["host"][new] = 0
    moved = np.where(table.wait_row >= at, table.wait_row + n, table.wait_row)
    waits = np.split(moved, table.wait_index[1:-1]) if len(table) else []
    waits[at:at] = [np.array([after], moved.dtype)] * n
    behind = (columns["kind"] == Kind.KERNEL) & (columns["stream"] == table.stream[after])
    later = np.flatnonzero(behind[at + n :])
    if len(later):
        first = at + n + int(later[0])
        waits[first] = np.append(waits[first], np.arange(at, at + n))
    index = np.cumsum([0, *map(len, waits)])
    return Table(
        **columns,
        wait_index=index.astype(np.int64),
        wait_row=np.concatenate(waits).astype(np.int32),
        queue_depth=table.queue_depth,
        label=table.label,
    )
