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
    made, changed, left = _pieces(program, table, groups, times, passes, stages.count > 1)
    lines = _lines(made, passes) if stages.count > 1 else _paired(made[0, 0])
    head = (
        f"{POLICY} model_parallel_NPU_group: {groups.tensor} ep: {groups.expert} "
        f"pp: {stages.count} vpp: {passes.chunks} ga: {passes.micro_batches} "
        f"all_gpus: {program.n_ranks} checkpoints: 0 checkpoint_initiates: 0 "
        f"pp_comm {message_bytes(table)}"
    )
    text = "\n".join([head, str(len(lines)), *lines]) + "\n"
    return SimaiText(text, len(lines), rank // stages.size, stages.count, changed, left)


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


def _pieces(
    program: Program,
    table: Table,
    groups: StageGroups,
    times: NDArray[np.int64] | None,
    passes: Passes,
    pipelined: bool,
) -> tuple[dict[tuple[int, int], Pieces], int, int]:
    """Return the pieces of each pass, `SimaiText.changed` and `SimaiText.left`.

    Times are whole ns: what is cut off a piece is added to the next one of its pass.
    """
    made: dict[tuple[int, int], Pieces] = defaultdict(lambda: Pieces([], []))
    spent: dict[tuple[tuple[int, int], int], int] = defaultdict(int)
    moved: dict[tuple[int, int], list[Piece]] = defaultdict(list)
    changed = 0
    stream = compute_stream(table)
    kernels = np.flatnonzero(table.is_device & ~table.is_communication & (table.stream == stream))
    crossing = np.array([groups.crosses(table, row) for row in range(len(table))])
    others = (messages(table) & pipelined) | crossing  # waiting for other stages is the bubble
    names, phase = program.names, table.phase
    sends = np.flatnonzero((table.kind == Kind.SEND) & pipelined)
    back = since = 0
    key = OUTSIDE

    def until(time: int) -> None:
        nonlocal since
        spent[key, back] += max(0, time - since)
        since = max(since, time)

    for row in np.flatnonzero(table.is_device | (table.kind == Kind.HOST_WAIT)).tolist():
        if times is not None:
            ends = [int(times[1, each]) for each in _awaited(table, row) if others[each]]
            since = max([since, *ends])
        if not table.is_device[row] or others[row]:
            continue
        if not table.is_communication[row]:
            if table.stream[row] != stream:
                continue
            back, key = int(phase[row] != Phase.FORWARD), passes.key(row)
            if times is None:
                spent[key, back] += int(table.duration[row]) + max(0, int(table.gap[row]))
            else:
                until(int(times[1, row]))
            continue
        member = groups.kind(program, table, row)
        if member is None:
            continue
        at = int(np.searchsorted(kernels, row))
        before = int(kernels[at - 1]) if at else -1
        behind = int(kernels[at]) if at < len(kernels) else len(table)
        waited = before in _awaited(table, row) and (
            behind == len(table) or row in _awaited(table, behind)
        )
        if phase[row] != Phase.FORWARD:  # a gradient that goes on to the stage before
            sent = sends[(sends > before) & (sends < behind)].tolist()
            waited &= all(row in _awaited(table, each) for each in sent)
        suffix, written = _as_written(member, groups, waited)
        changed += written != waited
        if written and times is not None:
            until(int(times[0, row]))
            since = max(since, int(times[1, row]))
        name = _word(names[table.name[row]])
        kind = KINDS[Operation(table.operation[row])] + suffix
        size = int(table.bytes[row])
        own = int(phase[row] != Phase.FORWARD) if phase[row] != Phase.NONE else back
        place = passes.key(row)
        if not written and not own:
            moved[place].append(Piece(name, 0, kind, size, False))
            continue
        whole = spent[place, own] // PS_PER_NS * PS_PER_NS
        spent[place, own] -= whole
        made[place][own].append(Piece(name, whole, kind, size, written))
    for (place, own), time in spent.items():
        if time >= PS_PER_NS:
            made[place][own].append(Piece(("forward", "backward")[own], time))
    for place, pieces in moved.items():
        made[place].backward[:0] = pieces[::-1]
    left = crossing & (table.bytes >= MIN_BYTES)
    return made, changed + sum(map(len, moved.values())), int(left.sum())


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
