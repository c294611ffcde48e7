"""Program → SimAI's text workload: one line a layer, as its own generator writes them.

A line has a forward and a backward pass, each a time and a communication that what follows waits
for, and a communication of weight gradients beside all that follows (`mpisim.formats.simai`,
`simai_layers`). So a rank's rows are cut where it communicates:

- Rows of forward passes give *forward pieces*, all others, in their order, *backward pieces*: the
  time that kernels take, and the communication behind them.
- A piece is waited for if its communication waits for the last kernel before it, and for it the
  next kernel and the gradient that is sent to the stage before; else it runs beside what follows.
  SimAI has no such piece in a forward pass: one is moved to the begin of the backward pass.
  Tensor-parallel communications are always waited for there, and with experts those of all
  data-parallel ranks never.
- Forward pieces go into lines from first to last, backward pieces from last to first, the order in
  which SimAI works through them. Several micro-batches give as many lines; SimAI does all forward
  passes first, which takes as long.
- Of a pipeline the text has one stage, as SimAI's generator writes it: what is outside of
  micro-batches, then the micro-batches, each behind an ``embedding_layer`` and all with the same
  lines. Waits for messages of other stages, and for collectives with them, are no time of a piece:
  SimAI adds the bubble.

What SimAI has no word for is left out: the CPU, launches, names of kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.files import write_whole
from ..base.quantity import PS_PER_NS
from ..base.text import counted
from ..program import Kind, Operation, Phase, Program, Table
from .simai_groups import KINDS, MIN_BYTES, StageGroups
from .simai_layers import MICRO_BATCH
from .simai_stages import (
    OUTSIDE,
    Passes,
    compute_stream,
    find_stages,
    message_bytes,
    messages,
    passes_of,
    representative,
)

__all__ = ["SimaiText", "rank_to_write", "write_simai"]

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
    stage, stages : int
        Which pipeline stage it is of, from 0, of how many.
    changed : int
        Communications that are waited for here and not in the program, or the other way round, or
        beside the backward pass in place of the forward pass.
    left : int
        Collective communications with ranks of other stages, which are left out.
    """

    text: str
    layers: int
    stage: int
    stages: int
    changed: int
    left: int

    @property
    def how(self) -> str:
        """Differences of the written file from the run, in words; empty if there are none."""
        said = []
        if self.stages > 1:
            said.append(f"layers of pipeline stage {self.stage} of {self.stages}, from 0")
        if self.changed:
            said.append(
                f"in SimAI {counted(self.changed, 'communication')} of a rank with another overlap"
            )
        if self.left:
            said.append(f"{counted(self.left, 'communication')} with other stages left out")
        return "; ".join(said)


class Pieces(NamedTuple):
    """Forward and backward pieces of a pass in the order of the rows."""

    forward: list[Piece]
    backward: list[Piece]


def write_simai(
    program: Program,
    path: str | Path,
    times: NDArray[np.int64] | None = None,
    *,
    rank: int | None = None,
    overwrite: bool = False,
) -> SimaiText:
    """Write a program as SimAI's text workload, whole or not at all. Local.

    Parameters
    ----------
    program : Program
        Whole.
    path : str or Path
    times : int64, shape (2, n_rows), optional
        See `simai_text`.
    rank : int, optional
        A rank of the pipeline stage whose layers are written; by default of the one whose
        work, in all stages, makes about as long a step.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    InputError
        If SimAI has no word for what its ranks do.
    OutputError
        If it cannot be written.
    """
    found = simai_text(program, times, rank_to_write(program, rank))
    with write_whole(path, overwrite=overwrite) as file:
        file.write(found.text.encode())
    return found


def rank_to_write(program: Program, rank: int | None = None) -> int:
    """Program, a rank → the first rank of the pipeline stage that is written.

    Parameters
    ----------
    program : Program
    rank : int, optional
        A rank of the stage; by default the stage is that whose work, in all stages, makes
        about as long a step (`representative`).

    Raises
    ------
    InputError
        If ranks do different things, and are no pipeline stages.
    """
    stages = find_stages(program)
    stage = representative(program, stages) if rank is None else rank // stages.size
    return stages.ranks(stage)[0]


def simai_text(program: Program, times: NDArray[np.int64] | None, rank: int) -> SimaiText:
    """Program, and the first rank of a pipeline stage → text of SimAI's workload.

    Parameters
    ----------
    program : Program
    times : int64, shape (2, n_rows), or None
        When each row of the rank began (communications: on the wire) and ended in a run, in ps:
        pieces then take what lies between their communications, with launches that kernels waited
        for. Else what their kernels take.
    rank : int
        As `rank_to_write` returns it.

    Raises
    ------
    InputError
        If ranks do not all do the same, or communicate in groups or ways that SimAI does not have.
    """
    stages = find_stages(program)
    table = program.table_of(rank)
    groups = StageGroups(program, stages.ranks(rank // stages.size))
    passes = passes_of(table, stages.count)
    cutter = _Cutter(program, table, groups, times, passes, pipelined=stages.count > 1)
    made = cutter.pieces()
    left = int((cutter.crossing & (table.bytes >= MIN_BYTES)).sum())
    lines = _lines(made, passes) if stages.count > 1 else _paired(made[0, 0])
    head = (
        f"{POLICY} model_parallel_NPU_group: {groups.tensor} ep: {groups.expert} "
        f"pp: {stages.count} vpp: {passes.chunks} ga: {passes.micro_batches} "
        f"all_gpus: {program.n_ranks} checkpoints: 0 checkpoint_initiates: 0 "
        f"pp_comm {message_bytes(table)}"
    )
    text = "\n".join([head, str(len(lines)), *lines]) + "\n"
    return SimaiText(text, len(lines), rank // stages.size, stages.count, cutter.changed, left)


def _paired(pieces: Pieces, count: int = 0, names: Sequence[str] = ()) -> list[str]:
    """Pieces of a pass → its lines, at least so many, with names of their own or those given."""
    count = max(count, *map(len, pieces))
    empty = Piece("empty", 0)
    ahead = [*pieces.forward, *[empty] * (count - len(pieces.forward))]
    back = [*[empty] * (count - len(pieces.backward)), *reversed(pieces.backward)]
    pairs = zip(ahead, back, names or [""] * count, strict=True)
    return [_line(one, other, name) for one, other, name in pairs]


def _lines(made: dict[tuple[int, int], Pieces], passes: Passes) -> list[str]:
    """Pieces of all passes of a pipeline stage → lines, the same for each micro-batch.

    Chunks are cut at the layer that comes behind the embedding (`simai_layers.micro_batches`).
    """
    begin, cut = (_line(Piece(name, 0), Piece(name, 0)) for name in (MICRO_BATCH, "chunk"))
    lines = _paired(made[OUTSIDE])
    batches = range(passes.micro_batches)
    shown = []
    for chunk in range(passes.chunks):
        longest = max(
            (made[batch, chunk] for batch in batches), key=lambda each: max(map(len, each))
        )
        shown.append([line.partition("\t")[0] for line in _paired(longest)])
    for batch in batches:
        lines.append(begin)
        for chunk, names in enumerate(shown):
            lines += [cut, *_paired(made[batch, chunk], len(names), names)]
    return lines


def _line(forward: Piece, backward: Piece, name: str = "") -> str:
    """A forward and a backward piece → a line of twelve fields."""
    none = ("0", "NONE", "0")
    one = (_ns(forward), forward.kind, str(forward.bytes))
    other = (_ns(backward), backward.kind, str(backward.bytes))
    parts = (one, other, none) if backward.waited else (one, none, other)
    name = name or (forward if forward.name != "empty" else backward).name
    return "\t".join([name, "-1", *(field for part in parts for field in part), "0"])


def _ns(piece: Piece) -> str:
    return str(piece.duration // PS_PER_NS)


class _Cutter:
    """Rows of a rank, one after another → the pieces of each pass.

    Times are whole ns: what is cut off a piece is added to the next one of its pass.

    Attributes
    ----------
    changed : int
        As of a `SimaiText`.
    crossing : bool, shape (n_rows,)
        Collective communications with ranks of other stages.
    """

    def __init__(
        self,
        program: Program,
        table: Table,
        groups: StageGroups,
        times: NDArray[np.int64] | None,
        passes: Passes,
        *,
        pipelined: bool,
    ) -> None:
        self._program, self._table, self._groups = program, table, groups
        self._times, self._passes = times, passes
        self._stream = stream = compute_stream(table)
        computes = table.is_device & ~table.is_communication & (table.stream == stream)
        self._kernels = np.flatnonzero(computes)
        self.crossing = np.array([groups.crosses(table, row) for row in range(len(table))])
        # Waiting for other stages is the bubble.
        self._of_other_stages = (messages(table) & pipelined) | self.crossing
        self._sends = np.flatnonzero((table.kind == Kind.SEND) & pipelined)
        self._made: dict[tuple[int, int], Pieces] = defaultdict(lambda: Pieces([], []))
        self._moved: dict[tuple[int, int], list[Piece]] = defaultdict(list)
        # Time of kernels that is in no piece yet, by pass and by 0 (forward) or 1 (backward).
        self._spent: dict[tuple[tuple[int, int], int], int] = defaultdict(int)
        self._key, self._back = OUTSIDE, 0  # of the latest kernel
        self._since = 0  # until when time has been given to pieces
        self.changed = 0

    def pieces(self) -> dict[tuple[int, int], Pieces]:
        """Return the pieces of each pass."""
        table, others = self._table, self._of_other_stages
        for row in np.flatnonzero(table.is_device | (table.kind == Kind.HOST_WAIT)).tolist():
            if self._times is not None:
                ends = [int(self._times[1, each]) for each in _awaited(table, row) if others[each]]
                self._since = max([self._since, *ends])
            if not table.is_device[row] or others[row]:
                continue
            if table.is_communication[row]:
                self._communication(row)
            elif table.stream[row] == self._stream:
                self._kernel(row)
        for (place, own), time in self._spent.items():
            if time >= PS_PER_NS:
                self._made[place][own].append(Piece(("forward", "backward")[own], time))
        for place, pieces in self._moved.items():
            self._made[place].backward[:0] = pieces[::-1]
        self.changed += sum(map(len, self._moved.values()))
        return self._made

    def _until(self, time: int) -> None:
        """Give what has passed until a time to the pass of the latest kernel."""
        self._spent[self._key, self._back] += max(0, time - self._since)
        self._since = max(self._since, time)

    def _kernel(self, row: int) -> None:
        table = self._table
        self._back = int(table.phase[row] != Phase.FORWARD)
        self._key = self._passes.key(row)
        if self._times is None:
            taken = int(table.duration[row]) + max(0, int(table.gap[row]))
            self._spent[self._key, self._back] += taken
        else:
            self._until(int(self._times[1, row]))

    def _communication(self, row: int) -> None:
        """End a piece with a communication of the stage, if SimAI has one of its group."""
        table, phase = self._table, self._table.phase[row]
        member = self._groups.kind(self._program, table, row)
        if member is None:
            return
        waited = self._is_waited_for(row)
        suffix, written = _as_written(member, self._groups, waited)
        self.changed += written != waited
        if written and self._times is not None:
            self._until(int(self._times[0, row]))
            self._since = max(self._since, int(self._times[1, row]))
        name = _word(self._program.names[table.name[row]])
        kind = KINDS[Operation(table.operation[row])] + suffix
        size = int(table.bytes[row])
        own = int(phase != Phase.FORWARD) if phase != Phase.NONE else self._back
        place = self._passes.key(row)
        if not written and not own:
            self._moved[place].append(Piece(name, 0, kind, size, False))
            return
        whole = self._spent[place, own] // PS_PER_NS * PS_PER_NS
        self._spent[place, own] -= whole
        self._made[place][own].append(Piece(name, whole, kind, size, written))

    def _is_waited_for(self, row: int) -> bool:
        """Whether a communication waits for the kernel before it, and what follows for it."""
        table, kernels = self._table, self._kernels
        at = int(np.searchsorted(kernels, row))
        before = int(kernels[at - 1]) if at else -1
        behind = int(kernels[at]) if at < len(kernels) else len(table)
        waited = before in _awaited(table, row) and (
            behind == len(table) or row in _awaited(table, behind)
        )
        if table.phase[row] != Phase.FORWARD:  # a gradient that goes on to the stage before
            sent = self._sends[(self._sends > before) & (self._sends < behind)].tolist()
            waited &= all(row in _awaited(table, each) for each in sent)
        return waited


def _awaited(table: Table, row: int) -> list[int]:
    """Return the rows that a row waits for itself."""
    found: list[int] = table.wait_row[table.wait_index[row] : table.wait_index[row + 1]].tolist()
    return found


def _as_written(member: str, groups: StageGroups, waited: bool) -> tuple[str, bool]:
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
