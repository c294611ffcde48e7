"""Data dependencies between device operations, and a check of times against them.

A device operation belongs to the operator that launched it, this one to a node of the execution
trace, and nodes depend on each other through data. Between streams such dependencies are ordering
constraints that the recorded event waits should enforce; within a stream they always hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..base.errors import TraceError
from ..base.frozen import frozen
from ..base.text import percentage
from .dependencies import data_dependencies
from .et import is_execution_trace, read_et
from .et_model import ExecutionTrace
from .host import host_calls
from .kineto import KinetoTrace
from .kineto_file import read_kineto
from .link import Link, link_traces
from .sources import RANK_IN_NAME, Source

__all__ = [
    "DependencyCheck",
    "KernelDependencies",
    "check_dependencies",
    "kernel_dependencies",
    "known_dependencies",
]

MAX_EXAMPLES = 5
"""Dependencies, of those violated most, that are named."""


@frozen
class KernelDependencies:
    """Pairs of device operations of which the second reads what the first wrote.

    Attributes
    ----------
    source, target : int32, shape (n_dependencies,)
        Device operations by their position in the Kineto trace, in order of target.
    crosses : bool, shape (n_dependencies,)
        Whether the two are on different streams.
    attributed : int
        Device operations whose operator has a node in the execution trace.
    total : int
        Device operations in the trace.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    crosses: NDArray[np.bool_]
    attributed: int
    total: int

    def __len__(self) -> int:
        return len(self.source)


@frozen
class DependencyCheck:
    """How many dependencies given times respect.

    Attributes
    ----------
    total, satisfied, violated : int
    crossing, crossing_violated : int
        Of these, dependencies between streams.
    worst : int
        By how many ps the worst one is violated; 0 without.
    examples : list of (source, target, ps)
        The worst ones.
    """

    total: int
    satisfied: int
    violated: int
    crossing: int
    crossing_violated: int
    worst: int
    examples: list[tuple[int, int, int]]

    def describe(self, names: Sequence[str] = ()) -> str:
        """Return the result as text, the worst cases with the names of device operations."""
        share = self.satisfied / self.total if self.total else 1.0
        lines = [
            f"{self.satisfied} of {self.total} data dependencies hold ({percentage(share, 2)}); "
            f"{self.crossing} are between streams, {self.crossing_violated} of these are violated"
        ]
        for source, target, late in self.examples:
            a, b = (names[i] if names else str(i) for i in (source, target))
            lines.append(f"  {b} begins {late / 1e6:.3f} µs before the end of {a}")
        return "\n".join(lines)


def kernel_dependencies(trace: KinetoTrace, et: ExecutionTrace, link: Link) -> KernelDependencies:
    """Find the data dependencies between device operations.

    If several operations were launched by one operator, the last one on each stream represents
    what it wrote, and the first one on each stream reads. An operator that launched nothing (on
    the CPU, or whose launches are not in the trace) passes on what it depends on itself.

    Parameters
    ----------
    trace : KinetoTrace
    et : ExecutionTrace
    link : Link
        Of these two.
    """
    launched: dict[int, list[int]] = {}
    for call in host_calls(trace):
        node = int(link.node_of_operator[call.operator]) if call.operator >= 0 else -1
        if node >= 0:
            launched.setdefault(node, []).extend(call.ops)
    stream = trace.device.stream
    data = data_dependencies(et)
    # What a node represents: by stream, the latest device operation that its data waits for. The
    # operations of a stream run in order, so the latest is enough.
    stands: dict[int, dict[int, int]] = {}
    source: list[int] = []
    target: list[int] = []
    for node in np.flatnonzero(data.computes).tolist():
        before: dict[int, int] = {}
        for earlier in data.of(node).tolist():
            for s, op in stands[earlier].items():
                before[s] = max(op, before.get(s, -1))
        ops = sorted(launched.get(node, ()))
        if not ops:
            stands[node] = before
            continue
        first = {int(stream[op]): op for op in reversed(ops)}
        stands[node] = {int(stream[op]): op for op in ops}
        for op in first.values():
            for earlier in before.values():
                source.append(earlier)
                target.append(op)
    order = np.lexsort((source, target))
    sources, targets = (np.array(x, np.int32)[order] for x in (source, target))
    return KernelDependencies(
        source=sources,
        target=targets,
        crosses=stream[sources] != stream[targets],
        attributed=sum(map(len, launched.values())),
        total=len(trace.device),
    )


def known_dependencies(source: Source) -> KernelDependencies | None:
    """Find the data dependencies of a rank from the execution trace beside its Kineto trace.

    Returns None if there is none of this rank in the folder, or if the two do not belong together.
    """
    for path in sorted(source.path.parent.glob("*.json*")):
        if path == source.path or not is_execution_trace(path):
            continue
        named = RANK_IN_NAME.findall(path.name)
        if (int(named[-1]) if named else source.rank) != source.rank:
            continue
        et, trace = read_et(path), read_kineto(source.path)
        try:
            return kernel_dependencies(trace, et, link_traces(et, trace))
        except TraceError:
            continue
    return None


def check_dependencies(
    dependencies: KernelDependencies,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    tolerance: int = 0,
) -> DependencyCheck:
    """Count the dependencies that recorded or replayed times respect.

    Parameters
    ----------
    dependencies : KernelDependencies
    begin, end : int64, shape (n_device_operations,)
        Times of the device operations in ps, in the order of the Kineto trace.
    tolerance : int
        In ps; earlier by so much is no violation. Old Kineto files have whole µs.
    """
    early = end[dependencies.source] - begin[dependencies.target]
    broken = early > tolerance
    worst = np.argsort(-early, kind="stable")[: min(MAX_EXAMPLES, int(broken.sum()))]
    return DependencyCheck(
        total=len(dependencies),
        satisfied=int((~broken).sum()),
        violated=int(broken.sum()),
        crossing=int(dependencies.crosses.sum()),
        crossing_violated=int((broken & dependencies.crosses).sum()),
        worst=int(early[broken].max(initial=0)),
        examples=[
            (int(dependencies.source[i]), int(dependencies.target[i]), int(early[i])) for i in worst
        ],
    )
