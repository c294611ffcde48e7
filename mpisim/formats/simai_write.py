"""Program → SimAI's text workload: one line a layer, as its own generator writes them.

A line has a forward and a backward pass, each a time and a communication that what follows waits
for, and a communication of weight gradients beside all that follows (`mpisim.formats.simai`,
`simai_layers`). So a rank's rows are cut where it communicates:

- Rows of forward passes give *forward pieces*, all others, in their order, *backward pieces*: the
  time that kernels take, and the communication behind them.
- A piece is waited for if its communication waits for the last kernel before it, and the next
  kernel for it; else it runs beside what follows. SimAI has no such piece in a forward pass: one is
  moved to the begin of the backward pass. Tensor-parallel communications are always waited for
  there, and with experts those of all data-parallel ranks never.
- Forward pieces go into lines from first to last, backward pieces from last to first, the order in
  which SimAI works through them. Several micro-batches give as many lines; SimAI does all forward
  passes first, which takes as long.

What SimAI has no word for is left out: the CPU, launches, names of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.files import write_whole
from ..base.quantity import PS_PER_NS
from ..base.text import counted
from ..program import Kind, Operation, Phase, Program, Table

__all__ = ["SimaiText", "write_simai"]

_KINDS = {
    Operation.ALL_REDUCE: "ALLREDUCE",
    Operation.ALL_GATHER: "ALLGATHER",
    Operation.REDUCE_SCATTER: "REDUCESCATTER",
    Operation.ALL_TO_ALL: "ALLTOALL",
}

MIN_BYTES = 1024
"""Bytes below which a message is left out, as SimAI does with metadata and barriers."""

POLICY = "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
"""SimAI's generator writes it with and without checkpoints."""


class Piece(NamedTuple):
    """Kernels in a row, and the communication behind them.

    Attributes
    ----------
    name : str
    duration : int
        Of the kernels and the gaps before them, in ps.
    kind : str
        As SimAI writes it; ``"NONE"`` for none.
    bytes : int
    waited : bool
        Whether what follows waits for it.
    """

    name: str
    duration: int
    kind: str = "NONE"
    bytes: int = 0
    waited: bool = True


class SimaiText(NamedTuple):
    """A workload file, and what it had no word for.

    Attributes
    ----------
    text : str
    layers : int
    changed : int
        Communications that are waited for here and not in the program, or the other way round, or
        beside the backward pass in place of the forward pass.
    """

    text: str
    layers: int
    changed: int

    @property
    def how(self) -> str:
        """What SimAI does otherwise, in words; empty if nothing."""
        if not self.changed:
            return ""
        return f"in SimAI {counted(self.changed, 'communication')} of a rank with another overlap"


def write_simai(
    program: Program,
    path: str | Path,
    times: NDArray[np.int64] | None = None,
    *,
    overwrite: bool = False,
) -> SimaiText:
    """Write a program as SimAI's text workload, whole or not at all. Local.

    Parameters
    ----------
    program : Program
        Whole, of one pipeline stage.
    path : str or Path
    times : int64, shape (2, n_rows), optional
        See `simai_text`.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    InputError
        If SimAI has no word for what its ranks do.
    OutputError
        If it cannot be written.
    """
    found = simai_text(program, times)
    with write_whole(path, overwrite=overwrite) as file:
        file.write(found.text.encode())
    return found


def simai_text(program: Program, times: NDArray[np.int64] | None = None) -> SimaiText:
    """Program of one pipeline stage → text of SimAI's workload.

    Parameters
    ----------
    program : Program
    times : int64, shape (2, n_rows), optional
        When each row of rank 0 began (communications: on the wire) and ended in a run, in ps:
        pieces then take what lies between their communications, with launches that kernels waited
        for. Else what their kernels take.

    Raises
    ------
    InputError
        If ranks do not all do the same, or communicate in groups or ways that SimAI does not have.
    """
    if len(np.unique(program.table)) > 1:
        raise InputError(
            f"the ranks of this program do {len(np.unique(program.table))} different things "
            "(pipeline stages, or GPUs of their own); a SimAI workload has one list of layers "
            "for all"
        )
    table = program.table_of(0)
    groups = _Groups(program)
    forward, backward, changed = _pieces(program, table, groups, times)
    count = max(len(forward), len(backward))
    empty = Piece("empty", 0)
    ahead = [*forward, *[empty] * (count - len(forward))]
    back = [*[empty] * (count - len(backward)), *reversed(backward)]
    batches = int(table.micro_batch.max(initial=0)) + 1
    head = (
        f"{POLICY} model_parallel_NPU_group: {groups.tensor} ep: {groups.expert} pp: 1 vpp: 1 "
        f"ga: {batches} all_gpus: {program.n_ranks} checkpoints: 0 checkpoint_initiates: 0 "
        "pp_comm 0"
    )
    lines = [_line(one, other) for one, other in zip(ahead, back, strict=True)]
    return SimaiText("\n".join([head, str(count), *lines]) + "\n", count, changed)


def _line(forward: Piece, backward: Piece) -> str:
    """A forward and a backward piece → a line of twelve fields."""
    none = ("0", "NONE", "0")
    one = (_ns(forward), forward.kind, str(forward.bytes))
    other = (_ns(backward), backward.kind, str(backward.bytes))
    parts = (one, other, none) if backward.waited else (one, none, other)
    name = (forward if forward.name != "empty" else backward).name
    return "\t".join([name, "-1", *(field for part in parts for field in part), "0"])


def _ns(piece: Piece) -> str:
    return str(piece.duration // PS_PER_NS)


def _pieces(
    program: Program, table: Table, groups: _Groups, times: NDArray[np.int64] | None
) -> tuple[list[Piece], list[Piece], int]:
    """Return forward and backward pieces in the order of the rows, and `SimaiText.changed`.

    Times are whole ns: what is cut off a piece is added to the next one.
    """
    made: tuple[list[Piece], list[Piece]] = ([], [])
    spent = [0, 0]
    moved: list[Piece] = []
    changed = 0
    stream = _compute_stream(table)
    kernels = np.flatnonzero(table.is_device & ~table.is_communication & (table.stream == stream))
    names, phase = program.names, table.phase
    back = since = 0

    def until(time: int) -> None:
        nonlocal since
        spent[back] += max(0, time - since)
        since = max(since, time)

    for row in np.flatnonzero(table.is_device).tolist():
        if not table.is_communication[row]:
            if table.stream[row] != stream:
                continue
            back = int(phase[row] != Phase.FORWARD)
            if times is None:
                spent[back] += int(table.duration[row]) + max(0, int(table.gap[row]))
            else:
                until(int(times[1, row]))
            continue
        member = groups.kind(program, table, row)
        if member is None:
            continue
        at = int(np.searchsorted(kernels, row))
        before = int(kernels[at - 1]) if at else -1
        waited = _waits(table, row, before) and (
            at == len(kernels) or _waits(table, int(kernels[at]), row)
        )
        suffix, written = _as_written(member, groups, waited)
        changed += written != waited
        if written and times is not None:
            until(int(times[0, row]))
            since = max(since, int(times[1, row]))
        name = _word(names[table.name[row]])
        kind = _KINDS[Operation(table.operation[row])] + suffix
        size = int(table.bytes[row])
        own = int(phase[row] != Phase.FORWARD) if phase[row] != Phase.NONE else back
        if not written and not own:
            moved.append(Piece(name, 0, kind, size, False))
            continue
        whole = spent[own] // PS_PER_NS * PS_PER_NS
        spent[own] -= whole
        made[own].append(Piece(name, whole, kind, size, written))
    for own, what in enumerate(("forward", "backward")):
        if spent[own] >= PS_PER_NS:
            made[own].append(Piece(what, spent[own]))
    made[1][:0] = moved[::-1]
    return made[0], made[1], len(moved) + changed


def _large(table: Table) -> NDArray[np.bool_]:
    """Return which rows are communications that are not left out."""
    return table.is_communication & (table.bytes >= MIN_BYTES)


def _waits(table: Table, row: int, other: int) -> bool:
    """Whether a row waits for another itself."""
    waits = table.wait_row[table.wait_index[row] : table.wait_index[row + 1]]
    return bool((waits == other).any())


def _compute_stream(table: Table) -> int:
    """Return the stream with most of the time of kernels.

    Raises
    ------
    InputError
        If there is none.
    """
    kernels = table.is_device & ~table.is_communication
    if not kernels.any():
        raise InputError("the ranks of this program compute nothing; SimAI's layers do")
    totals = np.bincount(table.stream[kernels], weights=table.duration[kernels])
    return int(totals.argmax())


def _as_written(member: str, groups: _Groups, waited: bool) -> tuple[str, bool]:
    """Group, and whether it is waited for → suffix of the kind, and whether it is in the text.

    A line's gradients of inputs have any group but the data-parallel one, and are waited for; those
    of weights have any but the tensor-parallel one.
    """
    if member == "DP" and groups.expert == 1:
        member = "DP_EP"  # of one expert's ranks these are all
    if member == "TP":
        return "", True
    if member == "DP":
        return "", False
    return f"_{member}", waited


def _word(name: str) -> str:
    """Name of a row → one word, which `simai_layers.micro_batches` does not look for."""
    return "_".join(name.split()) or "communication"


class _Groups:
    """Sizes of tensor and expert parallelism that the groups of rank 0 fit.

    SimAI's ranks are ``tp + TP·dp``, of which `expert` data-parallel ones in a row share experts.
    """

    def __init__(self, program: Program) -> None:
        table = program.table_of(0)
        slots = sorted(set(table.slot[_large(table)].tolist()))
        bound = program.slots_of(0)
        self._members = {
            slot: tuple(sorted(program.communicators.group(int(bound[slot])))) for slot in slots
        }
        n = program.n_ranks
        wanted = {each for each in self._members.values() if len(each) > 1}
        strange = wanted
        for tensor, expert in _divisors(n):
            kinds = {members: kind for kind, members in reversed(_groups_of(n, tensor, expert))}
            left = wanted - set(kinds)
            if not left:
                self.tensor, self.expert, self._kinds = tensor, expert, kinds
                return
            strange = min(strange, left, key=len)
        self._refuse(min(strange, key=len))

    def _refuse(self, strange: tuple[int, ...]) -> NoReturn:
        raise InputError(
            f"ranks {', '.join(map(str, strange[:8]))}{', …' if len(strange) > 8 else ''} "
            "communicate: with the other groups of this program they are no tensor-, expert- and "
            "data-parallel groups as SimAI numbers ranks"
        )

    def kind(self, program: Program, table: Table, row: int) -> str | None:
        """Return the group of a communication; None where there is nothing to send.

        Raises
        ------
        InputError
            For an operation that SimAI does not have.
        """
        operation = Operation(table.operation[row])
        if table.bytes[row] < MIN_BYTES:
            return None
        members = self._members[int(table.slot[row])]
        if len(members) == 1:
            return None
        if Kind(table.kind[row]) != Kind.COLLECTIVE or operation not in _KINDS:
            name = program.names[table.name[row]]
            raise InputError(
                f"row {row} ({name}): SimAI's layers have no {operation.name.lower()}; "
                f"allowed: {', '.join(each.name.lower() for each in _KINDS)}"
            )
        return self._kinds[members]


def _divisors(n: int) -> Iterator[tuple[int, int]]:
    """Yield sizes of tensor and expert parallelism, those without experts first."""
    for expert in (each for each in range(1, n + 1) if n % each == 0):
        for tensor in (each for each in range(1, n // expert + 1) if n // expert % each == 0):
            yield tensor, expert


def _groups_of(n: int, tensor: int, expert: int) -> Sequence[tuple[str, tuple[int, ...]]]:
    """Ranks, and sizes → the groups of rank 0 by kind."""
    return (
        ("TP", tuple(range(tensor))),
        ("EP", tuple(range(0, tensor * expert, tensor))),
        ("DP", tuple(range(0, n, tensor))),
        ("DP_EP", tuple(range(0, n, tensor * expert))),
    )
