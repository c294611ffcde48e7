"""Published tables of measurements → `Measurement` rows, by the columns of each known table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from mpisim.base.csv_files import CsvRow
from mpisim.base.kinds import Operation

from .formulas import NIC_ALONE
from .measurement import Measurement

__all__ = ["GRADE_COLUMNS", "TABLE_FORMATS", "TableFormat", "curve_name"]

GRADE_COLUMNS = ("grade", "op", "gpu", "num_gpus", "num_nodes", "dtype", "source", "points")
"""Columns of a file of grades."""

OPERATIONS = {
    "all_reduce": Operation.ALL_REDUCE,
    "allreduce": Operation.ALL_REDUCE,
    "all_gather": Operation.ALL_GATHER,
    "allgather": Operation.ALL_GATHER,
    "reduce_scatter": Operation.REDUCE_SCATTER,
    "reducescatter": Operation.REDUCE_SCATTER,
    "alltoall": Operation.ALL_TO_ALL,
    "all_to_all": Operation.ALL_TO_ALL,
    "broadcast": Operation.BROADCAST,
    "reduce": Operation.REDUCE,
    "gather": Operation.GATHER,
    "scatter": Operation.SCATTER,
    "sendrecv": Operation.SEND_RECV,
    "send_recv": Operation.SEND_RECV,
}


class TableFormat(NamedTuple):
    """A kind of table: its publisher, the columns it is recognised by, and the reader of a row.

    A reader returns why a row must be left out, where it must.
    """

    publisher: str
    columns: tuple[str, ...]
    row: Callable[[CsvRow, str, int], Measurement | str]


def curve_name(row: CsvRow) -> str:
    """Row of nccl-tests, or of the file of grades → identity of its curve."""
    notes = "" if row["notes"].startswith("median of") else row["notes"].strip()
    source = row["source"].split("#")[0]
    group = f"{row.whole('num_gpus')} GPUs on {row.whole('num_nodes')} nodes"
    return " | ".join(
        (row["op"], row["gpu"], group, row["dtype"], row["nccl_version"], source, notes)
    )


def _setup(row: CsvRow, settings: tuple[tuple[str, str], ...]) -> str:
    """Row, NCCL settings → key that is equal for repeated nccl-tests runs of one configuration."""
    version = re.search(r"\d+\.\d+(\.\d+)?", row["nccl_version"])
    group = f"{row.whole('num_gpus')} GPUs on {row.whole('num_nodes')} nodes"
    return " | ".join(
        (
            row["op"],
            group,
            row["dtype"],
            version.group() if version else "",
            " ".join("=".join(each) for each in settings),
        )
    )


def _operation(name: str) -> Operation | str:
    found = OPERATIONS.get(name.strip().casefold())
    return f"operation {name!r} is unknown" if found is None else found


def _settings(notes: str) -> tuple[tuple[str, str], ...]:
    """Return the variables that a note states were set."""
    if "NVLS disabled" in notes or "NVLS off" in notes:
        return (("NCCL_NVLS_ENABLE", "0"),)
    return tuple(re.findall(r"\b(NCCL_ALGO|NCCL_PROTO)=(\w+)", notes))


def _nccl_tests(row: CsvRow, file: str, line: int) -> Measurement | str:
    operation = _operation(row["op"])
    if isinstance(operation, str):
        return operation
    seconds = row.number("out_of_place_time_us") * 1e-6
    gpus, size = row.whole("num_gpus"), row.whole("size_bytes")
    # Of all operations nccl-tests' algorithm bandwidth is that of the full buffer (its
    # doc/PERFORMANCE.md); where a table's size is what one rank gives, that bandwidth tells.
    bandwidth = (row.number("algbw_GBps") if row["algbw_GBps"] else 0.0) * 1e9
    if bandwidth > 1e9 and abs(bandwidth * seconds / (size * gpus) - 1) < 0.1 and gpus > 1:
        size *= gpus
    settings = _settings(row["notes"])
    return Measurement(
        operation=operation,
        bytes=size,
        seconds=seconds,
        gpus=gpus,
        nodes=row.whole("num_nodes"),
        gpu=row["gpu"],
        inside=row["intra_link"],
        across=row["inter_link"],
        curve=curve_name(row),
        file=file,
        line=line,
        library="rccl" if row["gpu"].startswith("MI") else "nccl",
        version=row["nccl_version"],
        notes=row["notes"],
        settings=settings,
        source=row["source"],
        setup=_setup(row, settings),
    )


def _vidur(row: CsvRow, file: str, line: int) -> Measurement | str:
    operation = _operation(row["op"])
    if isinstance(operation, str):
        return operation
    gpus, nodes = row.whole("num_gpus"), row.whole("num_nodes")
    name = f"Vidur {row['network']}"
    return Measurement(
        operation=operation,
        bytes=row.whole("size_bytes"),
        seconds=row.number("median_us") * 1e-6,
        gpus=gpus,
        nodes=nodes,
        gpu=row["gpu"],
        inside=name,
        across=name,
        curve=f"vidur | {row['network']} | {row['op']} | {gpus} GPUs | {nodes} nodes",
        file=file,
        line=line,
        notes="called by PyTorch",
        source="github:microsoft/vidur",
    )


def _vtrain(row: CsvRow, file: str, line: int) -> Measurement | str:
    gpus = row.whole("num_gpus")
    return Measurement(
        operation=Operation.ALL_REDUCE,
        bytes=row.whole("size_bytes"),
        seconds=row.number("time_us") * 1e-6,
        gpus=gpus,
        nodes=1,
        gpu=row["gpu"],
        inside="vTrain",
        across="none",
        curve=f"vtrain | {row['gpu']} | {gpus} GPUs",
        file=file,
        line=line,
        source="github:VIA-Research/vTrain",
    )


def _alps(row: CsvRow, file: str, line: int) -> Measurement | str:
    gpus, nodes = row.whole("num_gpus"), row.whole("num_nodes")
    return Measurement(
        operation=Operation.ALL_REDUCE,
        bytes=row.whole("size_bytes"),
        seconds=row.number("time_us_median") * 1e-6,
        gpus=gpus,
        nodes=nodes,
        gpu=row["gpu"],
        inside="NVLink4 4-GPU all-to-all (150 GB/s per pair)",
        across="none" if nodes == 1 else "4x200G Slingshot-11 (100 GB/s)",
        curve=f"alps, median of configurations | {gpus} GPUs",
        file=file,
        line=line,
        version="2.23.4",
        source="github:boeschf/nccl-benchmark-on-alps-2025",
    )


def _aicb(row: CsvRow, file: str, line: int) -> Measurement | str:
    operation = _operation(row["op"])
    if isinstance(operation, str):
        return operation
    if not row["group_size_field"].isdigit():
        return "the size of the group is not stated"
    gpus = row.whole("group_size_field")
    return Measurement(
        operation=operation,
        bytes=row.whole("msg_bytes"),
        seconds=row.number("median_ms") * 1e-3,
        gpus=gpus,
        nodes=1,
        gpu="A100",
        inside="AICB, in a training run",
        across="none",
        curve=f"aicb | {row['op']} | {row['group']} | {gpus} GPUs",
        file=file,
        line=line,
        notes="called by PyTorch",
        source=row["source"],
    )


DEEPEP_HIDDEN, DEEPEP_EXPERTS, DEEPEP_GROUPS = 7168, 8, 4
"""Of DeepEP's published runs (README): width of a token, experts a token goes to, nodes that these
are limited to."""

DEEPEP_GPUS_PER_NODE = 8
"""GPUs of a node in DeepEP's published runs."""


def _deepep(row: CsvRow, file: str, line: int) -> Measurement | str:
    kernel, gpus = row["kernel"], row.whole("ep_size")
    nodes = max(1, gpus // DEEPEP_GPUS_PER_NODE)
    low = kernel == "low_latency"
    # Tokens travel out in fp8 with a 4-byte scale for every 128 values, and back in bf16.
    width = (
        2 * DEEPEP_HIDDEN
        if row["direction"] == "combine"
        else DEEPEP_HIDDEN + DEEPEP_HIDDEN // 128 * 4
    )
    # The low-latency kernels send a copy to each expert; the others one to each node, or GPU of a
    # single node.
    copies = DEEPEP_EXPERTS if low or nodes == 1 else min(DEEPEP_GROUPS, nodes)
    size = (128 if low else 4096) * copies * width
    if low:
        seconds = row.number("latency_us") * 1e-6
    else:
        counted: float = size
        if row["version"] == "2025-02" and nodes > 1:
            # The first release counted what leaves the node; later ones, by their own words or by
            # exceeding the NIC's rate, all copies.
            counted = size * (1 - 1 / nodes)
        seconds = counted / (row.number("bandwidth_GBps") * 1e9)
    return Measurement(
        operation=Operation.ALL_TO_ALL,
        bytes=size,
        seconds=seconds,
        gpus=gpus,
        nodes=nodes,
        gpu=row["gpu"],
        inside="NVLink",
        across="none" if nodes == 1 else "CX7 400G",
        curve=f"deepep | {kernel} | {row['version']} | {row['gpu'][:5]} | {row['direction']}",
        file=file,
        line=line,
        library=f"deepep-{kernel.replace('_', '-')}",
        version=row["version"],
        notes=row["setting"],
        settings=(NIC_ALONE,) if row["bandwidth_kind"] == "RDMA only" else (),
        source=row["source"],
    )


TABLE_FORMATS = (
    TableFormat(
        "nccl-tests",
        (
            "op",
            "gpu",
            "num_gpus",
            "num_nodes",
            "intra_link",
            "inter_link",
            "size_bytes",
            "dtype",
            "out_of_place_time_us",
            "algbw_GBps",
            "nccl_version",
            "source",
            "notes",
        ),
        _nccl_tests,
    ),
    TableFormat(
        "Vidur",
        ("network", "op", "gpu", "num_gpus", "num_nodes", "size_bytes", "median_us"),
        _vidur,
    ),
    TableFormat("Alps", ("gpu", "num_gpus", "num_nodes", "size_bytes", "time_us_median"), _alps),
    TableFormat("vTrain", ("gpu", "num_gpus", "size_bytes", "time_us"), _vtrain),
    TableFormat(
        "DeepEP",
        (
            "kernel",
            "version",
            "gpu",
            "ep_size",
            "direction",
            "latency_us",
            "bandwidth_GBps",
            "bandwidth_kind",
            "setting",
        ),
        _deepep,
    ),
    TableFormat("AICB", ("op", "group", "group_size_field", "msg_bytes", "median_ms"), _aicb),
)
