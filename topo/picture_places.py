"""What is shown of a topology → where everything of its picture is, in inches, y upwards."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from textwrap import wrap

import numpy as np

from mpisim.base.picture import name_text

from .describe import NODE_WORDS
from .picture_contents import Machine, Shown, shown
from .topology import NodeKind, Topology

__all__ = ["BOX", "HIGH", "LEFT", "PITCH", "Places"]

_ROWS = (NodeKind.NIC, NodeKind.CPU, NodeKind.PCIE, NodeKind.GPU, NodeKind.NVSWITCH)
"""Rows of a machine, from the top."""

BOX, HIGH, PITCH, ROW = 0.78, 0.27, 0.92, 0.72
"""Width and height of a box; from one to the next in a row; from a row to the next."""

LEFT, TOP, GAP, PAD = 1.75, 0.95, 0.55, 0.3
"""Margins for the names of rows and for the title; between machines; inside their frames."""

MAX_SIDE = (20, 16, 4)
"""Routers of a grid that are shown along each dimension, by the number of dimensions: further ones
are left out."""

MAX_LEGEND_LINES = 10
"""Kinds of cables in the legend."""


class Places:
    """Places of machines, switches, routers of a grid and texts of a picture.

    Parameters
    ----------
    topology : Topology

    Attributes
    ----------
    shown : Shown
    x, y, wide : dict of int to float
        Middle of each unit that is shown, and the width of those that are wider than `BOX`.
    frames : list of (float, float, float, float, Machine)
        Left, bottom, width and height of each machine's frame.
    rows : list of (float, str)
        Height of each row, and what it is called.
    title : list of str
        Lines.
    width, height : float
        Of the whole picture.
    legend : list of (int, float, int)
        Kinds of cables, their bandwidth, and how many there are.
    cell, oblique : (float, float)
        From a router of a grid to the next along the first two dimensions, and along the third.
    grid_at : float
        Bottom of the grid.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.shown: Shown = shown(topology)
        self.is_grid = topology.grid is not None and len(topology.grid.dims) <= 3
        self.x: dict[int, float] = {}
        self.y: dict[int, float] = {}
        self.wide: dict[int, float] = {}
        self.frames: list[tuple[float, float, float, float, Machine]] = []
        self.rows: list[tuple[float, str]] = []
        self.legend = self._legend_rows()
        self.y_begin = 0.35 + 0.22 * len(self.legend) + 0.35
        self.width = LEFT
        top = self._place_machines(self.y_begin)
        top = self._reserve_grid(top) if self.is_grid else self._place_switches(top)
        self.width = max(self.width + 0.4, 7.5)
        self._centre_machines()
        title = name_text(topology.title, 300)
        self.title = wrap(title, int(self.width * 9.5))
        self.height = top + TOP + 0.24 * (len(self.title) - 1)

    def _place_machines(self, bottom: float) -> float:
        units, count = self.shown.units, self.topology.node_kind
        present = [
            kind
            for kind in _ROWS
            if any(units[u].kind == kind for machine in self.shown.machines for u in machine.units)
        ]
        self.lowest = present[-1] if present else None
        below = PAD + (ROW if self._is_mesh() else 0.0)  # for links inside the lowest row
        height = {kind: bottom + below + HIGH / 2 + i * ROW for i, kind in enumerate(present[::-1])}
        for kind in present:
            n = int((count == kind).sum())
            if kind == NodeKind.NIC:
                n = max(n, self.topology.nics)
            self.rows.append((height[kind], f"{n:,} {NODE_WORDS[kind][n > 1]}"))
        top = bottom + PAD + below + HIGH + (len(present) - 1) * ROW
        for machine in self.shown.machines:
            rows = [[u for u in machine.units if units[u].kind == kind] for kind in present]
            wide = max(max(map(len, rows)) * PITCH + 2 * PAD, 2.2)
            self._place_rows(rows, self.width, wide)
            for u in machine.units:
                self.y[u] = height[units[u].kind]
            self._widen_nvswitches(machine)
            self._move_cpus_aside(machine, self.width + PAD, self.width + wide - PAD)
            self.frames.append((self.width, bottom, wide, top - bottom, machine))
            self.width += wide + GAP
        self.width -= GAP if self.shown.machines else 0
        return top + ROW * 0.9

    def _is_mesh(self) -> bool:
        """Whether nodes of the lowest row are joined to each other."""
        units = self.shown.units
        ends = ((cable.a, cable.b) for cable in self.shown.cables if cable.a != cable.b)
        return any(units[a].kind == units[b].kind == self.lowest for a, b in ends)

    def _centre_machines(self) -> None:
        """Move the machines to the middle under wider rows of switches."""
        wide = self.frames[-1][0] + self.frames[-1][2] - LEFT if self.frames else 0.0
        by = (self.width - 0.4 - LEFT - wide) / 2
        if self.is_grid or by < 0.2:
            return
        for machine in self.shown.machines:
            for u in machine.units:
                self.x[u] += by
        self.frames = [(x + by, y, wide, high, m) for x, y, wide, high, m in self.frames]

    def _place_rows(self, rows: list[list[int]], left: float, wide: float) -> None:
        """Spread the longest row evenly, and put the others near what they are joined to."""
        near: dict[int, list[int]] = defaultdict(list)
        for cable in self.shown.cables:
            near[cable.a].append(cable.b)
            near[cable.b].append(cable.a)
        gpus = [row for row in rows if row and self.shown.units[row[0]].kind == NodeKind.GPU]
        longest = max([*gpus, *rows], key=len)  # GPUs in their order, if no other row is longer
        middle = left + wide / 2
        for row in rows:
            for i, u in enumerate(row):
                self.x[u] = middle + (i - (len(row) - 1) / 2) * PITCH
        members = set(itertools.chain(*rows))
        for _ in range(6):
            for row in rows:
                if row is longest:
                    continue
                wanted = {
                    u: float(np.mean([self.x[v] for v in near[u] if v in members] or [self.x[u]]))
                    for u in row
                }
                order = sorted(row, key=lambda u: wanted[u])
                places = _spread([wanted[u] for u in order], left + PAD, left + wide - PAD)
                for u, x in zip(order, places):
                    self.x[u] = x

    def _widen_nvswitches(self, machine: Machine) -> None:
        """Let an NVSwitch domain reach from its first GPU to its last."""
        switches = [u for u in machine.units if self.shown.units[u].kind == NodeKind.NVSWITCH]
        for u in switches if len(switches) == 1 else []:
            ends = [c.a + c.b - u for c in self.shown.cables if u in (c.a, c.b)]
            span = [self.x[v] for v in ends if v in self.x and v not in switches]
            if span:
                self.x[u] = (min(span) + max(span)) / 2
                self.wide[u] = max(span) - min(span) + BOX

    def _move_cpus_aside(self, machine: Machine, low: float, high: float) -> None:
        """Move CPUs off the lines that pass through their row, not far from where they are."""
        cpus = [u for u in machine.units if self.shown.units[u].kind == NodeKind.CPU]
        passing = [
            (cable.a, cable.b)
            for cable in self.shown.cables
            if cable.a in machine.units and cable.b in machine.units
            if not {cable.a, cable.b} & set(cpus)
        ]
        taken: list[float] = []
        for u in cpus:
            y, wanted = self.y[u], self.x[u]
            crossing = []
            for a, b in passing:
                if (self.y[a] - y) * (self.y[b] - y) < 0:
                    share = (y - self.y[a]) / (self.y[b] - self.y[a])
                    crossing.append(self.x[a] + share * (self.x[b] - self.x[a]))

            def cost(x: float, wanted: float = wanted, crossing: list[float] = crossing) -> float:
                hidden = sum(abs(x - each) < BOX / 2 + 0.05 for each in crossing)
                beside = sum(abs(x - each) < PITCH for each in taken)
                return 2 * hidden + 10 * beside + abs(x - wanted)

            places = np.arange(low + BOX / 2, high - BOX / 2 + 1e-6, 0.05).tolist()
            self.x[u] = min([wanted, *places], key=cost)
            taken.append(self.x[u])

    def _place_switches(self, bottom: float) -> float:
        units = self.shown.units
        levels = sorted({unit.level for unit in units if unit.level})
        begin, end = LEFT, max(self.width, LEFT + 3.0)
        for level in levels:
            row = [u for u, unit in enumerate(units) if unit.level == level]
            end = max(end, begin + len(row) * PITCH)
        self.width = end
        y = bottom + 0.4
        for level in levels:
            row = [u for u, unit in enumerate(units) if unit.level == level]
            step = (end - begin) / len(row)
            for i, u in enumerate(row):
                self.x[u] = begin + (i + 0.5) * step
                self.y[u] = y
                if len(row) == 1:
                    self.wide[u] = min(end - begin, 3.2)
            n = sum(units[u].count for u in row)
            inside = sum(c.count for c in self.shown.cables if c.a in row and c.b in row)
            text = f"{n:,} {NODE_WORDS[NodeKind.SWITCH][n > 1]}, level {level}"
            cables = "cable" if inside == 1 else "cables"
            self.rows.append((y, text))
            if inside:
                self.rows.append((y - 0.19, f"{inside:,} {cables} between them"))
                y += 0.35
            y += ROW * 1.35
        return y - ROW * 1.35 + HIGH if levels else bottom - ROW * 0.5

    def _reserve_grid(self, bottom: float) -> float:
        sides = [*self.sides(), 1, 1][:3]
        deep = sides[2] > 1
        self.cell = (1.5, 0.95) if deep else (0.55, 0.42)
        self.oblique = (0.34, 0.23)
        self.grid_at = bottom + 0.2
        across = (sides[0] - 1) * self.cell[0] + (sides[2] - 1) * self.oblique[0]
        up = (sides[1] - 1) * self.cell[1] + (sides[2] - 1) * self.oblique[1]
        self.width = max(self.width, LEFT + across + 1.5)
        return self.grid_at + max(up, 0.6) + 0.45

    def sides(self) -> list[int]:
        """Return how many routers of a grid are shown along each dimension."""
        assert self.topology.grid is not None
        dims = self.topology.grid.dims
        return [min(side, MAX_SIDE[len(dims) - 1]) for side in dims]

    def is_cut(self) -> bool:
        """Whether a grid has more routers than are shown."""
        assert self.topology.grid is not None
        return list(self.topology.grid.dims) != self.sides()

    def _legend_rows(self) -> list[tuple[int, float, int]]:
        """Kinds of cables, their bandwidth, and how many there are: those of most first."""
        topology = self.topology
        found = Counter(zip(topology.kind.tolist(), np.round(topology.bandwidth, -7).tolist()))
        rows = [
            (kind, bandwidth, n) for (kind, bandwidth), n in found.most_common(MAX_LEGEND_LINES)
        ]
        return sorted(rows, key=lambda row: (row[0], -row[1]))


def _spread(wanted: list[float], low: float, high: float) -> list[float]:
    """Move places in order apart, by `PITCH` at least, within bounds if there is room."""
    n = len(wanted)
    middle = (low + high) / 2
    if (n + 0.5) * PITCH > high - low:
        return [middle + (i - (n - 1) / 2) * PITCH for i in range(n)]
    places: list[float] = []
    for i, each in enumerate(wanted):  # not too far right for those that follow
        first = places[-1] + PITCH if places else low + PITCH / 2
        places.append(min(max(each, first), high - PITCH / 2 - (n - 1 - i) * PITCH))
    for i in range(n - 2, -1, -1):  # back to the left, by half of what it was too far right
        room = places[i] - (places[i - 1] + PITCH if i else low + PITCH / 2)
        over = max(0.0, places[i] - wanted[i])
        places[i] -= max(0.0, min(room, over / 2))
    return places
