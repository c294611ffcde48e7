"""Trace file → a summary as text (``mpisim trace show``)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ..base.errors import TraceError
from ..base.text import WIDTH, aligned, counted, one_line, shortened
from .communications import rank_communications
from .dependencies import data_dependencies
from .et import is_execution_trace, read_et
from .et_model import ExecutionTrace
from .host import host_calls
from .kernel_order import check_dependencies, kernel_dependencies
from .kineto import KERNEL, MEMCPY, MEMSET, KinetoTrace
from .kineto_file import read_kineto
from .link import link_traces
from .nsys import nsys_processes, read_nsys
from .sources import is_folder, is_kineto, is_nsys, json_files, sqlite_files

__all__ = ["joined", "overview", "read_traces", "trace_files"]

_MAX_LINES = 20
"""Lines of a list before the rest is only counted."""
_RANK = re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE)


def trace_files(paths: Iterable[Path | str]) -> list[Path]:
    """Return files, and instead of directories the trace files in them.

    Raises
    ------
    TraceError
        If a path does not exist, or a directory has no trace in it.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if not is_folder(path):
            files.append(path)
            continue
        inside = json_files(path)
        traces = [p for p in inside if is_execution_trace(p) or is_kineto(p)]
        traces += [p for p in sqlite_files(path) if is_nsys(p)]
        if not traces:
            raise TraceError(
                f"{path}: no trace in this folder, which holds {len(inside)} JSON files"
            )
        files += traces
    return files


def read_traces(path: Path) -> list[KinetoTrace | ExecutionTrace]:
    """Read the traces in a file of any kind: one, or those of the processes of an export.

    Raises
    ------
    TraceError
        If the file is of no kind that is known, or cannot be read.
    """
    if is_nsys(path):
        return [read_nsys(path, process) for process in nsys_processes(path)]
    return [read_et(path) if is_execution_trace(path) else read_kineto(path)]


def overview(trace: KinetoTrace | ExecutionTrace) -> str:
    """Describe a trace in a few lines of at most 100 characters.

    Returns
    -------
    str
        Without a newline at the end.
    """
    lines = _kineto(trace) if isinstance(trace, KinetoTrace) else _et(trace)
    return "\n".join([str(trace.path), *(shortened(line, WIDTH) for line in lines)])


def joined(traces: Sequence[KinetoTrace | ExecutionTrace]) -> str:
    """Join every execution trace to the Kineto trace of its rank, and check the data dependencies.

    Files belong together if their directories and the ranks in their names are the same; one file
    of each kind belong together in any case.

    Raises
    ------
    TraceError
        If no two files belong together, or files do not that should.
    """
    kineto = [trace for trace in traces if isinstance(trace, KinetoTrace)]
    ets = [trace for trace in traces if isinstance(trace, ExecutionTrace)]
    if len(kineto) == len(ets) == 1:
        pairs = [(ets[0], kineto[0])]
    else:
        found = {_key(trace.path): trace for trace in kineto}
        pairs = [(et, found[_key(et.path)]) for et in ets if _key(et.path) in found]
    if not pairs:
        raise TraceError(
            f"nothing to join among {len(ets)} execution traces and {len(kineto)} Kineto traces; "
            "files of one rank are told by 'rankN' in their names"
        )
    return "\n\n".join(_pair(et, trace) for et, trace in pairs)


def _key(path: Path) -> tuple[Path, str]:
    numbers = _RANK.findall(path.name)
    return path.parent, str(int(numbers[-1])) if numbers else ""


def _pair(et: ExecutionTrace, trace: KinetoTrace) -> str:
    link = link_traces(et, trace)
    dependencies = kernel_dependencies(trace, et, link)
    check = check_dependencies(dependencies, trace.device.begin, trace.device.end)
    lines = [
        f"{et.path.name} with {trace.path.name}",
        f"  {link.describe()}",
        f"  device operations of joined operators: {dependencies.attributed} of "
        f"{dependencies.total}",
        *(f"  {line}" for line in check.describe(trace.device.name).splitlines()),
    ]
    return "\n".join(shortened(_one_line(line), 2 * WIDTH) for line in lines)


def _kineto(trace: KinetoTrace) -> list[str]:
    device = trace.device
    steps = [name for name in trace.annotations.name if name.startswith("ProfilerStep#")]
    calls = host_calls(trace)
    kinds = Counter(device.kind.tolist())
    exported = is_nsys(trace.path)
    lines = _fields(
        ("kind", "one process of an Nsight Systems export" if exported else "Kineto trace"),
        ("size", f"{trace.size:,} bytes of {'SQLite' if exported else 'JSON'}"),
        ("device", trace.device_name or "not recorded"),
        ("rank", _of(trace.rank, trace.world_size)),
        ("backend", trace.backend or "not recorded"),
        ("steps", _listed(dict.fromkeys(steps))),
        ("operators", _on_threads(len(trace.operators), trace.operators.thread)),
        (
            "host calls",
            f"{len(trace.calls):,}, {sum(bool(c.ops) for c in calls):,} of them launches",
        ),
        ("device", f"{kinds[KERNEL]:,} kernels, {kinds[MEMCPY]:,} copies, {kinds[MEMSET]:,} sets"),
    )
    if len(device):
        span = int(device.end.max() - device.begin.min())
        lines += _fields(("device span", f"{span / 1e9:.3f} ms"))
        lines += ["", "Streams", *_indented(_streams(trace))]
    found = rank_communications(trace, calls, trace.rank or 0)
    if found:
        rows = Counter[tuple[str, str, int]]()
        moved = Counter[tuple[str, str, int]]()
        for one in found:
            key = (one.operation.name.lower(), one.group_name, len(one.group or ()))
            rows[key] += 1
            moved[key] += max(one.bytes, 0)
        unknown = sum(one.bytes < 0 for one in found)
        lines += ["", "Communication kernels", *_indented(_communications(rows, moved))]
        if unknown:
            lines.append(f"  {unknown} of these do not say how many bytes they move")
    if trace.groups:
        groups = [(name, "", ranks) for name, ranks in trace.groups.items()]
        lines += ["", "Process groups", *_indented(_groups(groups))]
    return [*lines, *(f"note: {one_line(warning)}" for warning in trace.warnings)]


def _et(et: ExecutionTrace) -> list[str]:
    steps = dict.fromkeys(name for name in et.name if name.startswith("ProfilerStep#"))
    operators = sum(map(bool, et.op_schema))
    world = max([group.size for group in et.groups.values()], default=0)
    data = data_dependencies(et)
    storages = np.unique(np.concatenate([et.inputs.storage, et.outputs.storage]))
    nodes = _on_threads(len(et), et.thread[et.thread > 0])
    if et.n_orphans:
        nodes += f"; the operators around {et.n_orphans:,} of them were not written by PyTorch"
    lines = _fields(
        (
            "kind",
            "PyTorch execution trace (no times: replay takes a Kineto trace's, or --cluster)",
        ),
        ("schema", et.schema),
        ("size", f"{et.size:,} bytes of JSON"),
        ("device", _listed(dict.fromkeys([*et.inputs.devices, *et.outputs.devices]))),
        ("rank", _of(et.rank, world or None)),
        ("steps", _listed(steps)),
        ("nodes", nodes),
        ("operators", f"{operators:,} with a declaration"),
        ("tensors", f"{len(et.inputs) + len(et.outputs):,} named, in {len(storages):,} storages"),
        ("data", f"{int(data.computes.sum()):,} nodes compute, {len(data):,} dependencies"),
    )
    if et.communications:
        rows = Counter[tuple[str, str, int]]()
        moved = Counter[tuple[str, str, int]]()
        for one in et.communications:
            key = (f"{one.collective} {one.dtype.lower()}".strip(), one.group_name, one.group_size)
            rows[key] += 1
            moved[key] += one.bytes
        lines += ["", "Communications", *_indented(_communications(rows, moved))]
    if et.groups:
        groups = [(g.name, f"{g.description} {g.backend}", g.ranks) for g in et.groups.values()]
        lines += ["", "Process groups", *_indented(_groups(groups))]
    return lines


def _one_line(line: str) -> str:
    """Put a line's text on one line and keep its indentation."""
    text = line.lstrip(" ")
    return " " * (len(line) - len(text)) + one_line(text)


def _fields(*fields: tuple[str, str]) -> list[str]:
    return [f"  {label:<12}{one_line(value)}" for label, value in fields]


def _of(rank: int | None, world: int | None) -> str:
    text = "not recorded" if rank is None else str(rank)
    return f"{text} of {world}" if world else text


def _on_threads(number: int, threads: np.ndarray) -> str:
    """Return how many there are, and on how many threads."""
    return f"{number:,} on {counted(_distinct(threads), 'thread')}"


def _distinct(values: np.ndarray) -> int:
    return len(np.unique(values))


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    if not names:
        return "not recorded"
    return ", ".join(names[:4]) + (f", … ({len(names)})" if len(names) > 4 else "")


def _indented(cells: list[list[str]]) -> list[str]:
    """Align a table with a head, name column first, and cut long lists."""
    lines = [f"  {line}" for line in aligned(cells, left=(0, len(cells[0]) - 1))]
    if len(lines) > _MAX_LINES + 1:
        return [*lines[: _MAX_LINES + 1], f"  … and {len(lines) - 1 - _MAX_LINES:,} more"]
    return lines


def _streams(trace: KinetoTrace) -> list[list[str]]:
    device = trace.device
    cells = [["stream", "operations", "ms busy", "first operation"]]
    for number, name in enumerate(trace.streams):
        own = np.flatnonzero(device.stream == number)
        busy = int((device.end[own] - device.begin[own]).sum())
        first = one_line(device.name[own[0]]) if len(own) else ""
        cells.append([str(name), f"{len(own):,}", f"{busy / 1e9:,.3f}", first])
    return cells


def _communications(
    rows: Counter[tuple[str, str, int]], moved: Counter[tuple[str, str, int]]
) -> list[list[str]]:
    cells = [["operation", "count", "bytes", "ranks", "group"]]
    for key in sorted(rows, key=lambda key: (-moved[key], key)):
        name, group, size = key
        cells.append([name, f"{rows[key]:,}", f"{moved[key]:,}", str(size or "?"), one_line(group)])
    return cells


def _groups(groups: list[tuple[str, str, tuple[int, ...]]]) -> list[list[str]]:
    cells = [["group", "size", "ranks and description"]]
    for name, text, ranks in groups:
        shown = ",".join(map(str, ranks[:16])) + (",…" if len(ranks) > 16 else "")
        cells.append([one_line(name), str(len(ranks)), one_line(f"{shown}  {text}")])
    return cells
