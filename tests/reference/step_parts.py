"""Parts of a step in plain Python: what each rank does between two begins or ends of anything."""

from __future__ import annotations

import itertools
import re
from collections import Counter

from mpisim.engine import Run
from mpisim.program import Kind, Phase, Program

__all__ = ["parts_of_rank"]

PHASES = ("forward", "backward", "weight", "recompute", "optimizer", "none")
KINDS = ("compute", "wire", "waiting", "idle", "input")
MAX_NAMES = 12
"""Groups of communications with a part of their own at most."""


def parts_of_rank(run: Run, i: int, begin: int, end: int) -> Counter[tuple[str, str]]:
    """Return the time of each part, (kind, name), of the i-th hosted rank in a window."""
    program = run.program
    rank = int(run.hosted[i])
    table, rows = program.table_of(rank), run.rows(i)
    kinds = _kinds(program)
    host: list[int] = []
    work: list[tuple[int, int, tuple[int, int, str], tuple[str, str]]] = []
    for row in range(len(table)):
        first, middle, last = (int(t[row]) for t in (rows.begin, rows.wire, rows.end))
        kind = Kind(int(table.kind[row]))
        if table.phase[row] == Phase.INPUT:
            host.append(min(last, end))
        elif kind == Kind.KERNEL or (kind == Kind.COPY and table.phase[row] == Phase.OPTIMIZER):
            phase = Phase(int(table.phase[row])).name.lower()
            name = "other compute" if phase == "none" else phase
            work.append((middle, last, (0, PHASES.index(phase), ""), ("compute", name)))
        elif kind == Kind.COPY:
            work.append((middle, last, (0, len(PHASES), ""), ("compute", "copies")))
        elif kind.is_communication:
            name = kinds[int(program.table[rank]), int(table.slot[row])]
            order = int(name == "other")
            work.append((middle, last, (1, order, name), ("wire", name)))
            work.append((first, middle, (2, order, name), ("waiting", name)))
    done = max((min(b, end) for a, b, *_ in work if max(a, begin) < min(b, end)), default=begin)
    if max(host, default=begin) > done:
        work.append((done, max(host), (3, 0, ""), ("input", "input")))
    moments = sorted({begin, end, *(t for a, b, *_ in work for t in (a, b) if begin < t < end)})
    found: Counter[tuple[str, str]] = Counter()
    for now, then in itertools.pairwise(moments):
        under_way = [(order, part) for a, b, order, part in work if a <= now < b]
        found[min(under_way)[1] if under_way else ("idle", "idle")] += then - now
    return found


def _kinds(program: Program) -> dict[tuple[int, int], str]:
    """What communicators are called that ranks of a table bind by a slot."""
    bound: dict[tuple[int, int], set[str]] = {}
    for rank in range(program.n_ranks):
        for slot, number in enumerate(program.slots_of(rank).tolist()):
            name = re.sub(r"[^a-zA-Z]*[0-9][^a-zA-Z]*$", "", program.communicators.names[number])
            bound.setdefault((int(program.table[rank]), slot), set()).add(name or "communication")
    groups: list[set[str]] = []
    for names in bound.values():
        joined = set(names)
        for group in [group for group in groups if group & joined]:
            groups.remove(group)
            joined |= group
        groups.append(joined)
    called = {name: min(group) for group in groups for name in group}
    uses: Counter[str] = Counter()
    for rank in range(program.n_ranks):
        for slot in range(len(program.slots_of(rank))):
            uses[called[min(bound[int(program.table[rank]), slot])]] += 1
    kept = sorted(uses, key=lambda name: (-uses[name], name))[:MAX_NAMES]
    return {
        place: called[min(names)] if called[min(names)] in kept else "other"
        for place, names in bound.items()
    }
