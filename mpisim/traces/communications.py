"""Trace of one rank → its communication kernels: operation, bytes, members, as far as known."""

from __future__ import annotations

import bisect
import json
import math
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np

from ..program import Operation
from .host import Call, communication_stem, is_communication_kernel
from .kineto import Arguments, KinetoTrace

__all__ = ["Communication", "rank_communications"]


@dataclass(slots=True)
class Communication:
    """One communication kernel.

    Times are int64 ps since the epoch, by the clock of the rank's host.

    Attributes
    ----------
    rank, op : int
        Rank, and the device operation in its trace.
    stream : int
        Stream number in its trace: one NCCL stream belongs to one communicator.
    stem : str
        The kernel's name without algorithm, protocol and data type.
    operation : Operation
    bytes : int
        Full buffer of the operation; -1 when the file does not say.
    begin, end : int
    group : tuple of int or None
        Members, where the file names them.
    group_name : str
    sequence : int
        The communicator's own count of operations; -1 when not recorded.
    directions : str
        Of a point-to-point kernel, ``S`` and ``R`` in order of issue; empty for collectives.
    peer : int
        The other rank of a point-to-point kernel, where the file names it; else -1.
    part : int
        Number of the message in a kernel that runs several (a batch, of which the file names the
        other rank of each); each of them is a communication of its own.
    """

    rank: int
    op: int
    stream: int
    stem: str
    operation: Operation
    bytes: int
    begin: int
    end: int
    group: tuple[int, ...] | None
    group_name: str
    sequence: int
    directions: str
    peer: int
    part: int = 0


class _Issued(NamedTuple):
    """A ``c10d::send`` or ``c10d::recv_`` of the CPU.

    Attributes
    ----------
    begin, end : int
        From the file's origin, in ps.
    way : str
        ``S`` or ``R``.
    args : Arguments or None
        Of the ``record_param_comms`` inside, which names the other rank.
    """

    begin: int
    end: int
    way: str
    args: Arguments | None


_BY_NAME = (
    (re.compile(r"all_?reduce|barrier", re.I), Operation.ALL_REDUCE),
    (re.compile(r"reduce_?scatter", re.I), Operation.REDUCE_SCATTER),
    (re.compile(r"all_?gather", re.I), Operation.ALL_GATHER),
    (re.compile(r"all_?to_?all|dispatch|combine|cached_notify", re.I), Operation.ALL_TO_ALL),
    (re.compile(r"broadcast", re.I), Operation.BROADCAST),
    (re.compile(r"reduce", re.I), Operation.REDUCE),
    (re.compile(r"scatter", re.I), Operation.SCATTER),
    (re.compile(r"gather", re.I), Operation.GATHER),
    (re.compile(r"send|recv|coalesced", re.I), Operation.SEND_RECV),
)
_SIZES = (
    (re.compile(r"bf16|bfloat16|half|f16|float16|c10::Half|c10::BFloat16", re.I), 2),
    (re.compile(r"f64|double|int64|long", re.I), 8),
    (re.compile(r"int8|uint8|u8|i8|byte|char|bool", re.I), 1),
    (re.compile(r"f32|float|int32|u32|i32|int", re.I), 4),
)


def rank_communications(trace: KinetoTrace, calls: list[Call], rank: int) -> list[Communication]:
    """Return the communication kernels of one rank in device order.

    Parameters
    ----------
    trace : KinetoTrace
    calls : list of Call
        Host calls of this trace, with the device operations that they launched.
    rank : int
        Global rank.

    Returns
    -------
    list of Communication
        With begin and end in ps since 1970, by the rank's own clock.
    """
    launched_by = {op: call for call in calls for op in call.ops}
    is_comm = [is_communication_kernel(name) for name in trace.device.name]
    directions = _directions(trace, calls, is_comm)
    epoch = trace.origin * 1_000_000
    found = []
    for op in np.flatnonzero(is_comm).tolist():
        args, name = trace.device.args[op], trace.device.name[op]
        call = launched_by.get(op)
        context = _context(trace, call)
        operation = _operation(args.collective, context, name)
        issued = directions.get(op, []) if operation is Operation.SEND_RECV else []
        way = "".join(each.way for each in issued)
        if operation is Operation.SEND_RECV and not way:
            way = _way_of_args(rank, args)
        group = _group(trace, args.group_name, args.group_ranks)
        whole = Communication(
            rank=rank,
            op=op,
            stream=int(trace.device.stream[op]),
            stem=communication_stem(name),
            operation=operation,
            bytes=_bytes(trace, call, op, operation, args.group_size or len(group or ())),
            begin=epoch + int(trace.device.begin[op]),
            end=epoch + int(trace.device.end[op]),
            group=group,
            group_name=args.group_name or "",
            sequence=-1 if args.seq is None else args.seq,
            directions=way,
            peer=_peer(rank, way, args),
        )
        found += _messages(trace, whole, issued) or [whole]
    return found


def _messages(
    trace: KinetoTrace, whole: Communication, issued: list[_Issued]
) -> list[Communication]:
    """A batch of sends and receives → each of them; none if the file does not name all partners."""
    peers = [-1 if e.args is None else _peer(whole.rank, e.way, e.args) for e in issued]
    if len(issued) < 2 or min(peers) < 0:
        return []
    found = []
    for part, (each, peer) in enumerate(zip(issued, peers, strict=True)):
        args = each.args
        assert args is not None
        width = _width(args.dtype or "")
        known = args.in_elements is not None and width
        found.append(
            replace(
                whole,
                bytes=(args.in_elements or 0) * width if known else whole.bytes,
                group=_group(trace, args.group_name, args.group_ranks) or whole.group,
                group_name=args.group_name or whole.group_name,
                directions=each.way,
                peer=peer,
                part=part,
            )
        )
    return found


def _context(trace: KinetoTrace, call: Call | None) -> str:
    """Names of the operators around the launch that say what is communicated."""
    if call is None:
        return ""
    names = []
    if call.nccl >= 0:
        names.append(trace.annotations.name[call.nccl])
    if call.c10d >= 0:
        names.append(trace.operators.name[call.c10d])
    return " ".join(names)


def _operation(collective: str | None, context: str, name: str) -> Operation:
    """What a kernel does: by its arguments, by the operators around it, by its own name."""
    for text in (collective or "", context, name.split("(")[0]):
        for pattern, operation in _BY_NAME:
            if text and pattern.search(text):
                return operation
    return Operation.UNKNOWN


def _directions(
    trace: KinetoTrace, calls: list[Call], is_comm: list[bool]
) -> dict[int, list[_Issued]]:
    """Of every point-to-point kernel, the sends and receives issued since the last one."""
    issued: dict[int, list[_Issued]] = {}
    operators = trace.operators
    for i, name in enumerate(operators.name):
        own = issued.get(int(operators.thread[i]))
        begin, end = int(operators.begin[i]), int(operators.end[i])
        if name.startswith(("c10d::send", "c10d::recv")):
            way = "S" if name.startswith("c10d::send") else "R"
            issued.setdefault(int(operators.thread[i]), []).append(_Issued(begin, end, way, None))
        elif name == "record_param_comms" and own and own[-1].end >= end:
            own[-1] = own[-1]._replace(args=operators.args[i])
    result = {}
    done: dict[int, int] = {}
    for call in calls:
        if call.ops and is_comm[call.ops[0]] and call.thread in issued:
            own = issued[call.thread]
            upto = bisect.bisect_right(own, call.begin, key=lambda each: each.begin)
            result[call.ops[0]] = own[done.get(call.thread, 0) : upto]
            done[call.thread] = upto
    return result


def _way_of_args(rank: int, args: Arguments) -> str:
    """S or R; PyTorch names where a send goes, and where a receive comes from, not both."""
    if args.src_rank is not None and args.src_rank != rank:
        return "R"
    return "S" if args.dst_rank is not None and args.dst_rank != rank else ""


def _peer(rank: int, way: str, args: Arguments) -> int:
    """The other rank of a message, -1 if unknown; ``saveNcclMeta`` of PyTorch names it."""
    other = {"S": args.dst_rank, "R": args.src_rank}.get(way)
    return -1 if other is None or other == rank else other


def _group(
    trace: KinetoTrace, name: str | None, ranks: str | list[int] | None
) -> tuple[int, ...] | None:
    """Members of a kernel's process group: from the file's table, else from its own list."""
    if name is not None and name in trace.groups:
        return trace.groups[name]
    if isinstance(ranks, str):
        # A list of more than 30 is cut by the profiler ("[0, ..., 63]") and cannot be used.
        try:
            ranks = json.loads(ranks)
        except (ValueError, RecursionError):
            return None
    if isinstance(ranks, list) and ranks and all(isinstance(r, int) for r in ranks):
        return tuple(ranks)
    return None


def _bytes(
    trace: KinetoTrace, call: Call | None, op: int, operation: Operation, group_size: int
) -> int:
    """Bytes of the full buffer; -1 if the file does not say.

    All-gather: what is gathered; reduce-scatter: what is scattered; all-to-all: what one rank
    sends; the others: the buffer itself.
    """
    args = trace.device.args[op]
    by_name = _width(trace.device.name[op].split("(")[0])
    if args.in_elements is not None and args.out_elements is not None:
        width = _width(args.dtype or "") or by_name
        return max(args.in_elements, args.out_elements) * width if width else -1
    if call is None:
        return -1
    around = [
        trace.annotations.args[call.nccl] if call.nccl >= 0 else None,
        trace.operators.args[call.params] if call.params >= 0 else None,
        trace.operators.args[call.c10d] if call.c10d >= 0 else None,
    ]
    shown = [args for args in around if args is not None]
    elements = max((_elements(args.dims) for args in shown), default=0)
    # The operators know the type; NCCL's all-to-all moves bytes and calls its kernel int8.
    width = next((w for args in shown if (w := _type_width(args.types))), by_name)
    return elements * width if elements and width else -1


def _width(text: str) -> int:
    return next((size for pattern, size in _SIZES if pattern.search(text)), 0)


def _type_width(types: msgspec.Raw) -> int:
    """Bytes an element of the first tensor in an ``Input type`` argument."""
    return _width(bytes(types).decode("utf-8", "replace").partition(",")[0])


def _elements(dims: msgspec.Raw) -> int:
    """Elements of the largest tensor in an ``Input Dims`` argument."""
    if not bytes(dims):
        return 0
    try:
        shapes = msgspec.json.decode(dims)
    except (msgspec.DecodeError, RecursionError):
        return 0
    sizes = [
        math.prod(shape)
        for shape in (shapes if isinstance(shapes, list) else ())
        if isinstance(shape, list) and shape and all(isinstance(n, int) for n in shape)
    ]
    return max(sizes, default=0)
