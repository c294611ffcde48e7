"""Program → the pipeline stages that SimAI's workload has one of, and the passes of one of them.

SimAI's generator writes the layers of one rank, of one stage: every micro-batch after the other,
each beginning with its embedding. Here a *pass* is what a stage computes of one model chunk for one
micro-batch, forward or backward, between two messages.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from ..program import Kind, Phase, Program, Table

__all__ = [
    "OUTSIDE",
    "Passes",
    "Stages",
    "compute_stream",
    "find_stages",
    "message_bytes",
    "messages",
    "passes_of",
    "representative",
]

OUTSIDE = (-1, -1)
"""Key of what lies in no pass."""


@frozen
class Stages:
    """Pipeline stages of a program: as many ranks each, one stage's side by side.

    Attributes
    ----------
    count : int
    size : int
        Ranks of each.
    """

    count: int
    size: int

    def ranks(self, stage: int) -> range:
        """Return the ranks of a stage."""
        return range(stage * self.size, (stage + 1) * self.size)


class Passes(NamedTuple):
    """Which pass each row is in.

    Attributes
    ----------
    micro_batch, chunk : int64, shape (n_rows,)
        -1 in no pass.
    micro_batches, chunks : int
    """

    micro_batch: NDArray[np.int64]
    chunk: NDArray[np.int64]
    micro_batches: int
    chunks: int

    def key(self, row: int) -> tuple[int, int]:
        """Return micro-batch and chunk of a row."""
        return int(self.micro_batch[row]), int(self.chunk[row])


def find_stages(program: Program) -> Stages:
    """Program → its pipeline stages: ranks that do the same, and send to those of the next stage.

    Raises
    ------
    InputError
        If ranks do different things otherwise.
    """
    n = program.n_ranks
    different = len(np.unique(program.table))
    if different == 1:
        return Stages(1, n)
    far = [abs(peer) for peer in _peers(program, 0)]
    size = min(far, default=n)
    stages = program.table.reshape(-1, size) if n % size == 0 else None
    if not far or stages is None or (stages != stages[:, :1]).any():
        raise InputError(
            f"the ranks of this program do {different} different things, and are no pipeline "
            "stages as SimAI numbers ranks (those of a stage side by side, and alike); a SimAI "
            "workload has one list of layers for all"
        )
    for first in range(0, n, size):
        peers = _peers(program, first)
        if any((peer - size) % n and (peer + size) % n for peer in peers):
            named = ", ".join(str(first + peer) for peer in peers)
            raise InputError(
                f"rank {first} exchanges messages with ranks {named}; in a SimAI workload it may "
                "with one of the pipeline stage before, and one of the stage behind"
            )
    return Stages(n // size, size)


def _peers(program: Program, rank: int) -> list[int]:
    """Return how far those are from a rank that it sends to or receives from."""
    table, bound = program.table_of(rank), program.slots_of(rank)
    slots = np.unique(table.slot[messages(table)])
    return sorted(
        {
            member - rank
            for slot in slots.tolist()
            for member in program.communicators.group(int(bound[slot]))
            if member != rank
        }
    )


def representative(program: Program, stages: Stages) -> int:
    """Program, its stages → the one whose work, in every stage, makes a step that is about as long.

    A step of m micro-batches on p stages that take t_s each, with v chunks, takes about
    m max(t) + (sum(t) - max(t)) / v: the slowest stage is never idle but while the pipeline fills
    and drains. With all stages alike that is t (m + (p - 1) / v).

    Parameters
    ----------
    program : Program
    stages : Stages
        Of the program.
    """
    tables = [program.table_of(stages.ranks(stage)[0]) for stage in range(stages.count)]
    passes = passes_of(tables[0], stages.count)
    many, chunks = passes.micro_batches, max(1, passes.chunks)
    work = np.array([_work(table) for table in tables]) / many
    step = many * work.max() + (work.sum() - work.max()) / chunks
    alike = work * (many + (stages.count - 1) / chunks)
    return int(np.abs(alike - step).argmin())


def _work(table: Table) -> int:
    """Return what a stage's kernels take of all micro-batches, in ps."""
    kernels = table.is_device & ~table.is_communication & (table.stream == compute_stream(table))
    inside = kernels & (table.micro_batch >= 0)
    return int(table.duration[inside if inside.any() else kernels].sum())


def compute_stream(table: Table) -> int:
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


def messages(table: Table) -> NDArray[np.bool_]:
    """Return which rows are sends and receives."""
    return np.isin(table.kind, (Kind.SEND, Kind.RECV))


def message_bytes(table: Table) -> int:
    """Return the largest message of a stage to its neighbours."""
    return int(table.bytes[messages(table)].max(initial=0))


def passes_of(table: Table, stages: int) -> Passes:
    """Table of a stage → the pass of each row; without a pipeline all rows are in one.

    Parameters
    ----------
    table : Table
        Of any rank of the stage.
    stages : int
        Pipeline stages of the program.

    Raises
    ------
    InputError
        If micro-batches do not all go through the same layers of the stage, as often forward as
        backward, or gradients of weights have passes of their own.
    """
    n = len(table)
    count = int(table.micro_batch.max(initial=-1)) + 1
    if stages == 1:
        return Passes(np.zeros(n, np.int64), np.zeros(n, np.int64), max(1, count), 1)
    if (table.phase == Phase.WEIGHT).any():
        raise InputError(
            "a pipeline stage computes gradients of weights in passes of their own: SimAI has no "
            "schedule that cuts backward passes"
        )
    micro_batch = table.micro_batch.astype(np.int64)
    chunk = np.full(n, -1, np.int64)
    done: Counter[tuple[int, bool]] = Counter()
    now: tuple[int, bool] | None = None
    inside = table.is_device & ~messages(table) & (micro_batch >= 0)
    for row in np.flatnonzero(inside & (table.phase != Phase.NONE)).tolist():
        key = int(micro_batch[row]), bool(table.phase[row] != Phase.FORWARD)
        if key != now:
            now = key
            done[key] += 1
        chunk[row] = done[key] - 1
    forward = inside & (table.phase == Phase.FORWARD)
    ends = [set(table.layer[forward & (micro_batch == i)].tolist()) for i in (0, count - 1)]
    if ends[0] != ends[1]:
        raise InputError(
            f"micro-batches 0 and {count - 1} go through different layers of a pipeline stage: "
            "SimAI has no schedule with micro-batches of two directions"
        )
    chunks = done[0, False]
    for batch in range(count):
        ahead, back = done[batch, False], done[batch, True]
        if not ahead == back == chunks:
            raise InputError(
                f"micro-batch {batch} goes through a pipeline stage {ahead} times forward and "
                f"{back} times backward, and should {chunks} times both ways, as in SimAI"
            )
    backward = (chunk >= 0) & (table.phase != Phase.FORWARD)
    chunk[backward] = chunks - 1 - chunk[backward]
    micro_batch[chunk < 0] = -1
    return Passes(micro_batch, chunk, count, chunks)
