"""One run of nccl-tests or rccl-tests, as its output states it, and its measurements.

`nccl_tests` reads runs from what the programs print, and from the files of their option ``-J``.
What an output leaves out, such as how many nodes there were, the user states (`RunOverrides`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.kinds import Operation
from mpisim.base.presets import match_name, normalized_name, packaged

from ..nccl import Settings
from ..network import bus_factor
from .measurement import Measurement

__all__ = [
    "OUTPUT_SOURCES",
    "PROGRAM_OPERATIONS",
    "ListedRank",
    "ResultRow",
    "Run",
    "RunOverrides",
    "measurements",
    "settings_of",
]

PROGRAM_OPERATIONS = {
    "all_reduce": Operation.ALL_REDUCE,
    "all_gather": Operation.ALL_GATHER,
    "reduce_scatter": Operation.REDUCE_SCATTER,
    "alltoall": Operation.ALL_TO_ALL,
    "sendrecv": Operation.SEND_RECV,
    "broadcast": Operation.BROADCAST,
    "reduce": Operation.REDUCE,
    "gather": Operation.GATHER,
    "scatter": Operation.SCATTER,
}
"""Operations by the names of the programs, without ``_perf``."""

OUTPUT_SOURCES = ("nccl-tests", "rccl-tests")
"""What measurements have as their source that were read here."""

ELEMENT_BYTES = {
    "char": 1,
    "int8": 1,
    "uint8": 1,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "half": 2,
    "bfloat16": 2,
    "int": 4,
    "int32": 4,
    "uint32": 4,
    "float": 4,
    "int64": 8,
    "uint64": 8,
    "double": 8,
}
"""Bytes of an element, by the names of types that the programs print."""


@frozen
class ListedRank:
    """A line of the list of devices: which group, on which host, which GPU, and its name."""

    number: int
    group: int
    host: str
    device: str
    gpu: str


@frozen
class ResultRow:
    """A row of a result table.

    Attributes
    ----------
    line : int
        Of the file.
    size : int
        Bytes of the larger buffer of a rank, the first column: the full buffer, as `Measurement`
        counts it.
    count : int
        Elements, the second column: of the part of one rank where operations scatter or gather.
    kind : str
        Of the elements: ``"float"``.
    reduction, root : str, int, optional
        ``"none"`` and -1 where the operation has none; None where the table has no such column.
    seconds : float
        Out of place.
    bandwidth, bus : float
        Printed bandwidths of the algorithm and the bus, bytes per second.
    wrong : float
        Elements with wrong values.
    """

    line: int
    size: int
    count: int
    kind: str
    reduction: str | None
    root: int | None
    seconds: float
    bandwidth: float
    bus: float
    wrong: float = 0.0


@frozen
class Run:
    """One run of a program, as its output states it.

    Attributes
    ----------
    file : str
        Its path.
    line : int
        Where the table starts; 1 in JSON.
    program : str
        A name of `PROGRAM_OPERATIONS`, another program of nccl-tests, or empty.
    ranks : tuple of ListedRank
    devices : int, optional
        How many there were, where not all are listed.
    version : str
        Of the library.
    library : str
        ``"nccl"`` or ``"rccl"``.
    settings : tuple of (str, str)
        ``NCCL_*`` variables that change a time.
    network : str
        What NCCL overrides it uses between nodes.
    aggregated : int
        Operations of one launch (``-m``).
    rows : tuple of ResultRow
    cut : int
        Rows without a time: the output ends there, or something else was printed into it.
    """

    file: str
    line: int = 1
    program: str = ""
    ranks: tuple[ListedRank, ...] = ()
    devices: int | None = None
    version: str = ""
    library: str = "nccl"
    settings: tuple[tuple[str, str], ...] = ()
    network: str = ""
    aggregated: int = 1
    rows: tuple[ResultRow, ...] = ()
    cut: int = 0

    @property
    def where(self) -> str:
        """The file and the line, for messages."""
        return f"{self.file}, line {self.line}"

    @cached_property
    def members(self) -> tuple[ListedRank, ...]:
        """Ranks of the group that the table is of: that of rank 0 where there are several."""
        first = min(self.ranks, key=lambda each: each.number, default=None)
        return tuple(each for each in self.ranks if first and each.group == first.group)


@frozen
class RunOverrides:
    """Facts of a run that the user states: they replace or complete those of the output.

    Attributes
    ----------
    operation : str, optional
        A name of `PROGRAM_OPERATIONS`, or of an operation.
    gpus, nodes : int, optional
        Of the group.
    gpu : str, optional
        Name of the GPU where the output has none.
    network : str, optional
        What joins the nodes: ``"8x400G NDR IB"``.
    """

    operation: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    gpu: str | None = None
    network: str | None = None


def measurements(run: Run, overrides: RunOverrides) -> Iterator[Measurement | str]:
    """Output of a run → the measurement of each of its rows, or why it is left out.

    Parameters
    ----------
    run : Run
        The output of one run, with rows or without.
    overrides : RunOverrides
        What the user states of it.

    Raises
    ------
    InputError
        If neither the output nor the user says what a measurement needs.
    """
    yield from ("a row that is cut off" for _ in range(run.cut))
    if not run.rows:
        return
    operation = _operation(run, overrides)
    if isinstance(operation, str):
        yield from (operation for _ in run.rows)
        return
    gpus, nodes = _group_size(run, overrides)
    gpu = _gpu_name(run, overrides)
    across = "none" if nodes == 1 else overrides.network or run.network or "not stated"
    kinds = {each.kind for each in run.rows}
    first = Measurement(
        operation=operation,
        bytes=1,
        seconds=1.0,
        gpus=gpus,
        nodes=nodes,
        gpu=gpu,
        inside="",
        across=across,
        curve="",
        file=run.file.rsplit("/", 1)[-1],
        line=run.line,
        library="rccl" if normalized_name(gpu).startswith("mi") else run.library,
        version=run.version,
        settings=run.settings,
        source=f"{run.library}-tests",
    )
    group = f"{gpus} GPUs on {nodes} nodes"
    variables = " ".join("=".join(each) for each in run.settings)
    setups = {
        kind: " | ".join((operation.name.lower(), group, kind, run.version, variables))
        for kind in kinds
    }
    for row in run.rows:
        why = _why_unusable(run, row)
        if why:
            yield why
            continue
        yield replace(
            first,
            bytes=row.size,
            seconds=row.seconds,
            line=row.line,
            curve=f"{setups[row.kind]} | {run.file}:{run.line}",
            setup=setups[row.kind],
        )


def settings_of(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """``NCCL_*`` variables → those that change a time, in the order of their names."""
    found = {}
    for name, value in pairs:
        try:
            Settings.of({name: value})
        except InputError:  # one that changes no time, or that the library takes no notice of
            continue
        found[name] = value
    return tuple(sorted(found.items()))


def _why_unusable(run: Run, row: ResultRow) -> str:
    if run.aggregated > 1:
        return f"{run.aggregated} operations in one launch (option -m)"
    if row.wrong:
        return "results with wrong values"
    if not row.size:
        return "a size of 0"
    return "" if row.seconds > 0 else "a time of 0"


def _operation(run: Run, overrides: RunOverrides) -> Operation | str:
    """Return the operation of the run; the columns of the table must not contradict it."""
    possible = _possible_operations(run)
    if overrides.operation is not None:
        name = overrides.operation.casefold().replace("-", "_").removesuffix("_perf")
        known = PROGRAM_OPERATIONS | {
            each.name.lower(): each for each in PROGRAM_OPERATIONS.values()
        }
        if name not in known:
            raise InputError(
                f"operation {overrides.operation!r} is unknown; allowed: "
                f"{', '.join(PROGRAM_OPERATIONS)}"
            )
        return known[name]
    if run.program:
        found = PROGRAM_OPERATIONS.get(run.program)
        if found is None:
            return f"{run.program}_perf measures no operation that is known here"
        if possible and found not in possible and len(run.members) != 1:
            raise InputError(
                f"{run.where}: the table of {run.program}_perf has the columns of "
                f"{_listed(possible)}; say which with --operation"
            )
        return found
    fitting = _fitting_operations(run, possible, overrides.gpus or run.devices or len(run.members))
    if len(fitting) == 1:
        return fitting[0]
    raise InputError(
        f"{run.where}: no name of a program, such as all_reduce_perf, stands before the table; say "
        f"which operation it is with --operation: "
        f"{_listed(fitting or [*PROGRAM_OPERATIONS.values()])}"
    )


def _possible_operations(run: Run) -> list[Operation]:
    """Return the operations that the reduction, the root and the count of a table leave open."""
    row = next((each for each in run.rows if each.size), None)
    if row is None or row.root is None or row.reduction is None or row.kind not in ELEMENT_BYTES:
        return []
    whole = (
        row.count * ELEMENT_BYTES[row.kind] == row.size
    )  # else it is the count of one rank's part
    if row.reduction != "none":
        if row.root >= 0:
            return [Operation.REDUCE]
        # Some versions print the reduction with sendrecv.
        return [Operation.ALL_REDUCE, Operation.SEND_RECV] if whole else [Operation.REDUCE_SCATTER]
    if row.root >= 0:
        return [Operation.BROADCAST] if whole else [Operation.GATHER, Operation.SCATTER]
    return [Operation.SEND_RECV] if whole else [Operation.ALL_GATHER, Operation.ALL_TO_ALL]


def _fitting_operations(run: Run, possible: list[Operation], gpus: int) -> list[Operation]:
    """Return the operations whose bus bandwidth is as printed, of some."""
    row = max(run.rows, key=lambda each: each.bandwidth)
    if row.bandwidth < 1e9 or gpus < 2:  # too few digits
        return possible
    ratio = row.bus / row.bandwidth
    return [each for each in possible if abs(ratio / bus_factor(each, gpus) - 1) < 0.05]


def _listed(operations: Iterable[Operation]) -> str:
    names = {operation: name for name, operation in PROGRAM_OPERATIONS.items()}
    return ", ".join(names[each] for each in operations)


def _group_size(run: Run, overrides: RunOverrides) -> tuple[int, int]:
    """Return GPUs and nodes."""
    members = run.members
    gpus = overrides.gpus or run.devices or len(members)
    if not gpus:
        raise InputError(
            f"{run.where}: no list of devices ('# Using devices', then a line a rank) stands "
            "before the table; say how many GPUs there were with --gpus, and on how many nodes "
            "with --nodes"
        )
    numbers = sorted(each.number for each in run.ranks)
    whole = run.devices is not None or numbers == [*range(len(numbers))]
    if not whole and (overrides.gpus is None or overrides.nodes is None):
        raise InputError(
            f"{run.where}: the list of devices has the ranks {_shortened(numbers)}, not all up to "
            f"{numbers[-1]}, or some twice; say how many GPUs there were with --gpus, and on how "
            "many nodes with --nodes"
        )
    if overrides.nodes is None:
        devices = [(each.host, each.device) for each in members]
        (host, device), times = Counter(devices).most_common(1)[0] if devices else (("", ""), 1)
        if times > 1:
            raise InputError(
                f"{run.where}: {times} ranks use device {device} of host {host!r}; if several "
                "nodes have one name, say how many there are with --nodes"
            )
    nodes = overrides.nodes or len({each.host for each in members})
    if not nodes:
        raise InputError(f"{run.where}: no list of devices; say on how many nodes with --nodes")
    if nodes > gpus:
        raise InputError(f"{run.where}: {gpus} GPUs on {nodes} nodes; every node needs one")
    return gpus, nodes


def _shortened(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:6]))
    return f"{text}, …" if len(numbers) > 6 else text


def _gpu_name(run: Run, overrides: RunOverrides) -> str:
    """Return the preset name of the GPUs where known, else as printed without the maker's."""
    printed = sorted({each.gpu.strip() for each in run.members} - {""})
    if not printed and overrides.gpu is not None:
        return overrides.gpu
    if len(printed) != 1:
        what = f"GPUs of several kinds, {', '.join(printed)}" if printed else "no name of a GPU"
        raise InputError(f"{run.where}: {what}; say which machine it is with --cluster")
    try:
        return match_name(printed[0], packaged("gpus.toml"), "GPU", "")
    except InputError:
        return re.sub(r"^(NVIDIA|AMD|Tesla|Instinct|GeForce)\s+", "", printed[0])
