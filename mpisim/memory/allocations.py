"""Allocations and frees → bytes that PyTorch's allocator has allocated and reserved over time.

`Allocations` is a table, a row for everything the program asks of the allocator of one GPU, in
order. Recorded runs give one (`mpisim.formats.torch_snapshot`, `mpisim.formats.kineto_memory`), and
so does whoever knows when tensors come and go (`Allocations.of_lifetimes`). `replay` runs it
through `CachingAllocator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..base.errors import InputError
from ..base.frozen import frozen
from .allocator_settings import AllocatorSettings
from .blocks import Block
from .caching_allocator import CachingAllocator, OutOfMemoryError
from .segments import Recorder

__all__ = ["Action", "Allocations", "Holder", "Recorded", "Usage", "holders", "replay"]

UNLABELLED = -1


class Action(IntEnum):
    """Kind of request to the allocator."""

    ALLOCATE = 0
    """`bytes` for `block` on `stream`."""
    FREE = 1
    """`block` is no longer used; other streams may not be done with it."""
    USE = 2
    """`stream` uses `block` from here on (`record_stream`)."""
    PASS = 3
    """`stream` has done all it was given before blocks were freed up to here."""
    EMPTY_CACHE = 4
    """`torch.cuda.empty_cache`."""


@frozen
class Allocations:
    """Requests of a program to one GPU's allocator, in order. All columns have one length.

    Attributes
    ----------
    action : int8 array
        Values of `Action`.
    block : int64 array
        Number of the allocation, from 0 on in the order of their rows; -1 where `action` is of
        none.
    bytes : int64 array
        What is asked for, where `action` is ALLOCATE; else 0.
    stream : int64 array
        Of ALLOCATE, USE and PASS; else 0.
    time : int64 array
        In ps, not decreasing; zeros where times are not known.
    label : int32 array
        Of ALLOCATE: where it comes from, as an index of `labels`; else, or if unknown, -1.
    labels : tuple of str
        Such as the paths of modules.
    """

    action: NDArray[np.int8]
    block: NDArray[np.int64]
    bytes: NDArray[np.int64]
    stream: NDArray[np.int64]
    time: NDArray[np.int64]
    label: NDArray[np.int32]
    labels: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.action)

    @classmethod
    def of_lifetimes(
        cls,
        begin: ArrayLike,
        end: ArrayLike,
        size: ArrayLike,
        stream: ArrayLike | None = None,
        label: ArrayLike | None = None,
        labels: Sequence[str] = (),
        *,
        timed: bool = False,
    ) -> Allocations:
        """Lifetime of each tensor → the table of allocations and frees.

        Parameters
        ----------
        begin, end : array of int
            Positions in the program, of any origin: a tensor is there from `begin` on, and no
            longer after `end`; a negative `end` says that it stays. At equal positions what comes
            is first, as an operator's result is there before its inputs go.
        size : array of int
            Bytes; tensors of none are left out.
        stream : array of int, optional
            By default all are on stream 0.
        label : array of int, optional
            Where each comes from, as an index of `labels`; -1 if unknown.
        labels : sequence of str
        timed : bool
            Whether positions are times in ps.

        Raises
        ------
        InputError
            If columns do not have one length, a size is negative, or a tensor goes before it comes.
        """
        first, last = np.asarray(begin, np.int64), np.asarray(end, np.int64)
        count = len(first)
        sizes = np.asarray(size, np.int64)
        streams = np.zeros(count, np.int64) if stream is None else np.asarray(stream, np.int64)
        names = np.full(count, UNLABELLED) if label is None else np.asarray(label)
        for name, column in (
            ("end", last),
            ("size", sizes),
            ("stream", streams),
            ("label", names),
        ):
            if len(column) != count:
                raise InputError(f"allocations: {count} of begin, but {len(column)} of {name}")
        wrong = np.flatnonzero((sizes < 0) | ((last >= 0) & (last < first)))
        if wrong.size:
            row = int(wrong[0])
            what = "negative" if sizes[row] < 0 else "freed before it is allocated"
            raise InputError(f"allocations: row {row} is {what}")
        there = np.flatnonzero(sizes)
        freed = there[last[there] >= 0]
        rows = np.concatenate([there, freed])
        frees = np.arange(len(rows)) >= len(there)
        position = np.where(frees, last[rows], first[rows])
        order = np.lexsort((frees, position))
        rows, frees, position = rows[order], frees[order], position[order]
        number = np.empty(count, np.int64)
        number[rows[~frees]] = np.arange(len(there))
        return cls(
            action=np.where(frees, Action.FREE, Action.ALLOCATE).astype(np.int8),
            block=number[rows],
            bytes=np.where(frees, 0, sizes[rows]),
            stream=np.where(frees, 0, streams[rows]),
            time=position if timed else np.zeros(len(rows), np.int64),
            label=np.where(frees, UNLABELLED, names[rows]).astype(np.int32),
            labels=tuple(labels),
        )

    @classmethod
    def of_events(
        cls,
        tensor: ArrayLike,
        size: ArrayLike,
        stream: ArrayLike | None = None,
        time: ArrayLike | None = None,
        label: ArrayLike | None = None,
        labels: Sequence[str] = (),
    ) -> Allocations:
        """Allocations and frees of tensors, in order → the table.

        Parameters
        ----------
        tensor : array of int
            Any number of a storage; it may be used again once the storage has gone.
        size : array of int
            Bytes that it has from here on; 0: it goes. One that is there and gets another size is
            allocated anew before the old block is freed, as PyTorch resizes storages.
        stream : array of int, optional
            By default all are on stream 0.
        time : array of int, optional
            In ps, not decreasing.
        label : array of int, optional
            Where each comes from, as an index of `labels`; -1 if unknown.
        labels : sequence of str

        Raises
        ------
        InputError
            If columns do not have one length, a size is negative, or a tensor goes that is not
            there.
        """
        tensors, sizes = np.asarray(tensor, np.int64), np.asarray(size, np.int64)
        count = len(tensors)
        given = [
            np.zeros(count, np.int64) if column is None else np.asarray(column, np.int64)
            for column in (stream, time)
        ]
        given.append(np.full(count, UNLABELLED) if label is None else np.asarray(label, np.int64))
        for name, column in zip(("size", "stream", "time", "label"), (sizes, *given), strict=True):
            if len(column) != count:
                raise InputError(f"allocations: {count} tensors, but {len(column)} of {name}")
        live: dict[int, int] = {}
        rows: list[tuple[int, int, int]] = []
        blocks = 0
        for row, (number, bytes_) in enumerate(zip(tensors.tolist(), sizes.tolist(), strict=True)):
            before = live.pop(number, None)
            if bytes_ < 0:
                raise InputError(f"allocations: row {row} is negative")
            if bytes_:
                live[number] = blocks
                rows.append((Action.ALLOCATE, blocks, row))
                blocks += 1
            elif before is None:
                raise InputError(
                    f"allocations: row {row} frees tensor {number}, which is not there"
                )
            if before is not None:
                rows.append((Action.FREE, before, row))
        action, block, of = np.array(rows, np.int64).reshape(-1, 3).T
        frees = action == Action.FREE
        return cls(
            action=action.astype(np.int8),
            block=block,
            bytes=np.where(frees, 0, sizes[of]),
            stream=np.where(frees, 0, given[0][of]),
            time=given[1][of],
            label=np.where(frees, UNLABELLED, given[2][of]).astype(np.int32),
            labels=tuple(labels),
        )


@frozen
class Recorded:
    """Recorded requests to the allocator of one GPU, with the recorded peaks.

    Attributes
    ----------
    allocations : Allocations
    peak_allocated, peak_reserved : int or None
        Bytes; None where they were not recorded.
    settings : str
        PYTORCH_CUDA_ALLOC_CONF of the program, as far as it is known.
    device : int
        Number of the GPU.
    before : int
        Bytes that were allocated when the recording began: what is simulated has them in order of
        their addresses, or in one block where only their sum is known.
    """

    allocations: Allocations
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    settings: str = ""
    device: int = 0
    before: int = 0


@frozen
class Usage:
    """State of the allocator after each request: one row for each row of the allocations.

    Attributes
    ----------
    settings : AllocatorSettings
    capacity : int or None
        Bytes that the driver could give.
    allocated : int64 array
        Bytes of all blocks that are allocated (`torch.cuda.memory_allocated`).
    requested : int64 array
        Bytes asked for, of those that are active.
    active : int64 array
        Bytes of blocks that are allocated, or wait for a stream.
    reserved : int64 array
        Bytes of all segments (`torch.cuda.memory_reserved`).
    segments : int
        The most there were.
    retries : int
        Times that the driver had no memory until everything cached was given back; each waits for
        the GPU (`num_alloc_retries`).
    driver_calls : int
        Calls that make, map or free memory; those that free wait for the GPU.
    failure : OutOfMemoryError or None
        Where memory was exhausted: at the row behind the last of these columns.
    """

    settings: AllocatorSettings
    capacity: int | None
    allocated: NDArray[np.int64]
    requested: NDArray[np.int64]
    active: NDArray[np.int64]
    reserved: NDArray[np.int64]
    segments: int
    retries: int
    driver_calls: int
    failure: OutOfMemoryError | None = None

    @property
    def peak_allocated(self) -> int:
        """Most bytes allocated at any time (`torch.cuda.max_memory_allocated`)."""
        return int(self.allocated.max(initial=0))

    @property
    def peak_requested(self) -> int:
        """Most bytes that were asked for at any time, without rounding to blocks."""
        return int(self.requested.max(initial=0))

    @property
    def peak_reserved(self) -> int:
        """Most bytes of all segments at any time (`torch.cuda.max_memory_reserved`)."""
        return int(self.reserved.max(initial=0))

    @property
    def fragmentation(self) -> float:
        """Most bytes reserved over most bytes active, less 1, as ``data/memory.toml`` has it."""
        active = int(self.active.max(initial=0))
        return self.peak_reserved / active - 1 if active else 0.0


def replay(
    allocations: Allocations,
    settings: AllocatorSettings | None = None,
    capacity: int | None = None,
    device: int | None = None,
    recorder: Recorder | None = None,
    live: dict[int, Block] | None = None,
    allocator: CachingAllocator | None = None,
) -> Usage:
    """Allocations, allocator settings → `Usage`: allocated and reserved bytes after each request.

    Parameters
    ----------
    allocations : Allocations
    settings : AllocatorSettings, optional
        By default PyTorch's own.
    capacity : int, optional
        Bytes that the driver can give; by default there is no bound.
    device : int, optional
        Bytes of the GPU; by default `capacity`.
    recorder : callable, optional
        Told all that the allocator does.
    live : dict, optional
        Filled with the blocks that are left, by number.
    allocator : CachingAllocator, optional
        The one to use, in place of a new one with these settings.

    Raises
    ------
    InputError
        If a row frees or uses a block that is not there.
    """
    if allocator is None:
        allocator = CachingAllocator(settings, capacity, device, recorder)
    there: dict[int, Block] = {} if live is None else live
    columns: tuple[list[int], ...] = ([], [], [], [])
    note = [column.append for column in columns]
    segments = 0
    failure = None
    rows = zip(
        allocations.action.tolist(),
        allocations.block.tolist(),
        allocations.bytes.tolist(),
        allocations.stream.tolist(),
        strict=True,
    )
    try:
        for action, block, size, stream in rows:
            if action == 0:
                there[block] = allocator.allocate(size, stream)
                if allocator.segments > segments:
                    segments = allocator.segments
            elif action == 1:
                allocator.free(there.pop(block))
            elif action == 2:
                allocator.record_stream(there[block], stream)
            elif action == 3:
                allocator.synchronize(stream)
            else:
                allocator.empty_cache()
            note[0](allocator.allocated)
            note[1](allocator.requested)
            note[2](allocator.active)
            note[3](allocator.reserved)
    except OutOfMemoryError as error:
        failure = error
    except KeyError as error:
        what = "frees" if action == Action.FREE else "uses"
        raise InputError(
            f"allocations: row {len(columns[0])} {what} block {error.args[0]}, which is not there"
        ) from None
    allocated, requested, active, reserved = (np.array(column, np.int64) for column in columns)
    return Usage(
        settings=allocator.settings,
        capacity=allocator.capacity,
        allocated=allocated,
        requested=requested,
        active=active,
        reserved=reserved,
        segments=segments,
        retries=allocator.retries,
        driver_calls=allocator.driver_calls,
        failure=failure,
    )


@frozen
class Holder:
    """Bytes and blocks that one label holds at a moment.

    Attributes
    ----------
    label : str
        Empty for allocations without one.
    bytes : int
        Asked for.
    blocks : int
    """

    label: str
    bytes: int
    blocks: int


def holders(allocations: Allocations, row: int) -> list[Holder]:
    """Row of the allocations → bytes allocated after it, by label, the largest first.

    Parameters
    ----------
    allocations : Allocations
    row : int
        Index of the last row that counts.
    """
    until = slice(0, row + 1)
    allocates = allocations.action[until] == Action.ALLOCATE
    frees = allocations.action[until] == Action.FREE
    gone = allocations.block[until][frees]
    rows = np.flatnonzero(allocates)
    rows = rows[~np.isin(allocations.block[rows], gone)]
    label = allocations.label[rows] + 1
    sizes = np.zeros(len(allocations.labels) + 1, np.int64)
    np.add.at(sizes, label, allocations.bytes[rows])
    counts = np.bincount(label, minlength=len(sizes))
    names = ("", *allocations.labels)
    found = [Holder(names[i], int(sizes[i]), int(counts[i])) for i in np.flatnonzero(counts)]
    return sorted(found, key=lambda each: (-each.bytes, each.label))
