"""Pictures of topologies: a machine of each kind, above it the fabric by levels, or as a grid.

`pictured` says what is shown; here it is placed (in inches, y upwards) and drawn. Lines are as wide
as their bandwidth is large, on a logarithmic scale; the legend says how many cables there are of
each kind and bandwidth in all.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpisim.base.picture import check_picture, name_text, new_figure, save_picture

from .describe import LINK_WORDS, NODE_WORDS
from .picture_contents import Machine, Shown, Unit, shown
from .topology import LinkKind, NodeKind, Topology

__all__ = ["draw"]

_COLOUR = {
    NodeKind.GPU: "#4c7a00",
    NodeKind.NVSWITCH: "#2f5d3a",
    NodeKind.PCIE: "#a05a00",
    NodeKind.CPU: "#a63d40",
    NodeKind.NIC: "#2f66b5",
    NodeKind.SWITCH: "#3a3a6e",
}
_LINK_COLOUR = {
    LinkKind.NVLINK: "#76b900",
    LinkKind.PCIE: "#f0a030",
    LinkKind.HOST: "#c98a2b",
    LinkKind.SOCKET: "#d0605e",
    LinkKind.NIC: "#6b9be0",
    LinkKind.FABRIC: "#6c6cae",
}
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


def draw(topology: Topology, path: str | Path, *, overwrite: bool = False) -> None:
    """Draw a topology.

    Parameters
    ----------
    topology : Topology
    path : str or Path
        Ends in ``.svg``, ``.png`` or ``.pdf``.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    UsageError
        If the ending is another, or matplotlib is missing.
    OutputError
        If the file cannot be written.
    """
    check_picture("--draw", path, overwrite=overwrite)
    figure = _Picture(topology).figure()
    save_picture(figure, path, topology.title, overwrite=overwrite)


class _Picture:
    """Where everything of a picture is."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.shown: Shown = shown(topology)
        self.is_grid = topology.grid is not None and len(topology.grid.dims) <= 3
        self.x: dict[int, float] = {}
        self.y: dict[int, float] = {}
        self.wide: dict[int, float] = {}
        self.frames: list[tuple[float, float, float, float, Machine]] = []
        self.rows: list[tuple[float, str]] = []
        legend = self._legend_rows()
        self.y_begin = 0.35 + 0.22 * len(legend) + 0.35
        self.width = LEFT
        top = self._place_machines(self.y_begin)
        top = self._reserve_grid(top) if self.is_grid else self._place_switches(top)
        self.width = max(self.width + 0.4, 7.5)
        self._centre_machines()
        title = name_text(topology.title, 300)
        self.title = wrap(title, int(self.width * 9.5))
        self.height = top + TOP + 0.24 * (len(self.title) - 1)

    # --- places ---------------------------------------------------------------------------------

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
        sides = [*self._sides(), 1, 1][:3]
        deep = sides[2] > 1
        self.cell = (1.5, 0.95) if deep else (0.55, 0.42)
        self.oblique = (0.34, 0.23)
        self.grid_at = bottom + 0.2
        across = (sides[0] - 1) * self.cell[0] + (sides[2] - 1) * self.oblique[0]
        up = (sides[1] - 1) * self.cell[1] + (sides[2] - 1) * self.oblique[1]
        self.width = max(self.width, LEFT + across + 1.5)
        return self.grid_at + max(up, 0.6) + 0.45

    def _sides(self) -> list[int]:
        assert self.topology.grid is not None
        dims = self.topology.grid.dims
        return [min(side, MAX_SIDE[len(dims) - 1]) for side in dims]

    # --- drawing --------------------------------------------------------------------------------

    def figure(self) -> Any:
        """Draw the whole picture."""
        patches = import_module("matplotlib.patches")
        figure, axes = new_figure(self.width, self.height)
        self.patches, self.axes = patches, axes
        y = self.height - 0.38
        for line in self.title:
            axes.text(0.3, y, line, fontsize=11, fontweight="bold", parse_math=False)
            y -= 0.24
        axes.text(0.3, y - 0.02, self._left_out(), fontsize=7.5, color="#555", parse_math=False)
        for y, text in self.rows:
            self._text(LEFT - 0.18, y, text, 7.5, ha="right")
        for left, bottom, wide, high, machine in self.frames:
            self._frame(left, bottom, wide, high, machine)
        if self.is_grid:
            self._grid(self.grid_at)
        self._cables()
        for u, unit in enumerate(self.shown.units):
            if u in self.x:
                self._box(u, unit)
        self._legend()
        return figure

    def _left_out(self) -> str:
        """What the picture leaves out."""
        machines, units = self.shown.machines, self.shown.units
        parts = []
        if any(each.count > 1 for each in machines):
            parts.append("equal machines are shown once")
        if self.shown.hidden:
            parts.append(f"{self.shown.hidden:,} machines of further kinds are not shown")
        if any(unit.count > 1 and u in self.x for u, unit in enumerate(units)):
            parts.append("a stack is as many equal nodes as it says")
        if self.is_grid and self._cut():
            parts.append("further routers of the grid are not shown")
        parts.append("a wider line has more bandwidth")
        return "; ".join(parts)

    def _cut(self) -> bool:
        assert self.topology.grid is not None
        return list(self.topology.grid.dims) != self._sides()

    def _frame(
        self, left: float, bottom: float, wide: float, high: float, machine: Machine
    ) -> None:
        number = max(machine.count, 1)
        for i in range(2 if number > 1 else 0, 0, -1):
            self._rounded(left + 0.07 * i, bottom + 0.07 * i, wide, high, "#fafafa", "#bbb", -2)
        self._rounded(left, bottom, wide, high, "#f5f6f8", "#999", -1)
        text = name_text(machine.name, 40) or "all nodes"
        text += f" and {number - 1:,} like it" if number > 1 else ""
        self._text(left, bottom - 0.17, text, 7.5, fontweight="bold")

    def _text(self, x: float, y: float, text: str, size: float, **more: Any) -> None:
        settings: dict[str, Any] = {"va": "center_baseline", "color": "#333", "parse_math": False}
        self.axes.text(x, y, text, fontsize=size, **(settings | more))

    def _rounded(
        self, x: float, y: float, wide: float, high: float, face: str, edge: str, order: float
    ) -> None:
        box = self.patches.FancyBboxPatch(
            (x, y),
            wide,
            high,
            boxstyle="round,pad=0,rounding_size=0.06",
            facecolor=face,
            edgecolor=edge,
            linewidth=0.7,
            zorder=order,
        )
        self.axes.add_patch(box)

    def _box(self, u: int, unit: Unit) -> None:
        wide = self.wide.get(u, BOX)
        x, y = self.x[u] - wide / 2, self.y[u] - HIGH / 2
        colour = _COLOUR[unit.kind]
        for i in range(2 if unit.count > 1 else 0, 0, -1):
            self._rounded(x + 0.05 * i, y + 0.05 * i, wide, HIGH, colour, "white", 3 - i * 0.1)
        self._rounded(x, y, wide, HIGH, colour, "white", 3)
        label = unit.label
        if unit.count > 1:
            label = (
                f"{unit.count:,} {NODE_WORDS[unit.kind][1]}" if wide > BOX else f"{unit.count:,} ×"
            )
        elif unit.kind == NodeKind.NVSWITCH and wide > 2:
            label = "NVSwitch domain"
        text = name_text(label, max(11, int(wide * 13)))
        self._text(self.x[u], self.y[u] - 0.005, text, 6.5, color="white", ha="center", zorder=4)

    def _cables(self) -> None:
        drawn: set[tuple[int, int, int, float]] = set()
        for cable in self.shown.cables:
            if cable.a == cable.b or cable.a not in self.x or cable.b not in self.x:
                continue
            key = (cable.a, cable.b, cable.kind, cable.bandwidth)
            if key in drawn:
                continue
            drawn.add(key)
            a, b = self._end(cable.a, cable.b), self._end(cable.b, cable.a)
            self._line(a, b, cable.kind, cable.bandwidth, 1.0 if cable.own else 0.28)

    def _end(self, u: int, v: int) -> tuple[float, float]:
        """Where a line from one unit to another begins: on a wide box below or above the other."""
        half = (self.wide.get(u, BOX) - BOX) / 2
        x = min(max(self.x[v], self.x[u] - half), self.x[u] + half)
        return x, self.y[u]

    def _line(
        self,
        a: tuple[float, float],
        b: tuple[float, float],
        kind: int,
        bandwidth: float,
        alpha: float = 1.0,
        flat: bool = False,
    ) -> None:
        path = import_module("matplotlib.path").Path
        (x, y), (u, v) = a, b
        bend = 0.0
        if not flat and y == v and abs(u - x) > PITCH * 1.1:
            up = 1 if y > self.frames[0][1] + self.frames[0][3] or not self.frames else -1
            bend = up * min(0.35 + abs(u - x) / 5, 1.55)
        curve = path(
            [a, ((x + u) / 2, (y + v) / 2 + bend), b], [path.MOVETO, path.CURVE3, path.CURVE3]
        )
        self.axes.add_patch(
            self.patches.PathPatch(
                curve,
                facecolor="none",
                edgecolor=_LINK_COLOUR[LinkKind(kind)],
                linewidth=_width(bandwidth),
                capstyle="butt",
                alpha=alpha,
                zorder=1,
            )
        )

    # --- grids ----------------------------------------------------------------------------------

    def _grid(self, bottom: float) -> None:
        """Draw routers at their coordinates, the layers of a third dimension side by side."""
        topology = self.topology
        assert topology.grid is not None
        grid, sides = topology.grid, self._sides()
        router = _routers(topology)
        at: dict[int, tuple[float, float]] = {}
        place: dict[int, tuple[int, ...]] = {}
        for gpu, node in enumerate(router.tolist()):
            where = tuple(grid.place[gpu].tolist())
            if node < 0 or any(c >= side for c, side in zip(where, sides)):
                continue
            i, j, k = (*where, 0, 0)[:3]
            at[node] = (
                LEFT + 0.8 + i * self.cell[0] + k * self.oblique[0],
                bottom + j * self.cell[1] + k * self.oblique[1],
            )
            place[node] = where
        both = np.isin(topology.source, list(at)) & np.isin(topology.target, list(at))
        for link in np.flatnonzero(both & (topology.source < topology.target)).tolist():
            a, b = int(topology.source[link]), int(topology.target[link])
            if sum(abs(p - q) for p, q in zip(place[a], place[b])) == 1:
                bandwidth = float(topology.bandwidth[link])
                self._line(at[a], at[b], int(topology.kind[link]), bandwidth, flat=True)
        self._stubs(at, place)
        size = (0.34, 0.19) if max(grid.dims) < 10 and len(at) <= 128 else (0.18, 0.18)
        for node, (x, y) in sorted(at.items(), key=lambda each: -each[1][1]):
            self._rounded(
                x - size[0] / 2, y - size[1] / 2, *size, _COLOUR[NodeKind.SWITCH], "white", 3
            )
            if size[0] > 0.2:
                text = ",".join(map(str, place[node]))
                self._text(x, y - 0.005, text, 5.5, color="white", ha="center", zorder=4)
        self._join_machine(at, router)
        lines = [f"{int(np.prod(grid.dims)):,} routers,", f"{_dims(grid.dims)} {self._shape()}"]
        if self._cut():
            lines.append(f"shown: {_dims(sides)}")
        if any(grid.wraps):
            lines.append("dotted: last to first" + (", or on" if self._cut() else ""))
        elif self._cut():
            lines.append("dotted: goes on")
        for i, text in enumerate(lines):
            self._text(LEFT - 0.18, bottom + 0.19 * (len(lines) - 1 - i), text, 7.5, ha="right")

    def _shape(self) -> str:
        assert self.topology.grid is not None
        return "torus" if any(self.topology.grid.wraps) else "mesh"

    def _stubs(self, at: dict[int, tuple[float, float]], place: dict[int, tuple[int, ...]]) -> None:
        """Show where a dimension goes on: around, or further than what is shown."""
        assert self.topology.grid is not None
        grid, sides = self.topology.grid, self._sides()
        ways = ((self.cell[0], 0.0), (0.0, self.cell[1]), self.oblique)
        for node, where in place.items():
            for d, (dx, dy) in enumerate(ways[: len(sides)]):
                ends = [-1] * (where[d] == 0 and grid.wraps[d])
                on = grid.wraps[d] or sides[d] < grid.dims[d]
                ends += [1] * (where[d] == sides[d] - 1 and on)
                for sign in ends:
                    x, y = at[node]
                    self.axes.plot(
                        [x, x + 0.34 * sign * dx],
                        [y, y + 0.34 * sign * dy],
                        color=_LINK_COLOUR[LinkKind.FABRIC],
                        linewidth=1.2,
                        linestyle=":",
                        zorder=0.5,
                    )

    def _join_machine(self, at: dict[int, tuple[float, float]], router: NDArray[np.int64]) -> None:
        """Join the machine that is shown to its own router."""
        node = int(router[0])
        if node not in at:
            return
        for cable in self.shown.cables:
            ends = (cable.a, cable.b)
            inside = [u for u in ends if u in self.x]
            if len(inside) == 1 and cable.kind == LinkKind.NIC and cable.own:
                u = inside[0]
                self._line((self.x[u], self.y[u]), at[node], cable.kind, cable.bandwidth)

    # --- legend ---------------------------------------------------------------------------------

    def _legend_rows(self) -> list[tuple[int, float, int]]:
        """Kinds of cables, their bandwidth, and how many there are: those of most first."""
        topology = self.topology
        found = Counter(zip(topology.kind.tolist(), np.round(topology.bandwidth, -7).tolist()))
        rows = [
            (kind, bandwidth, n) for (kind, bandwidth), n in found.most_common(MAX_LEGEND_LINES)
        ]
        return sorted(rows, key=lambda row: (row[0], -row[1]))

    def _legend(self) -> None:
        rows = self._legend_rows()
        y = 0.35 + 0.22 * (len(rows) - 1)
        for kind, bandwidth, count in rows:
            self.axes.plot(
                [0.35, 0.95],
                [y, y],
                color=_LINK_COLOUR[LinkKind(kind)],
                linewidth=_width(bandwidth),
                solid_capstyle="butt",
            )
            text = (
                f"{LINK_WORDS[LinkKind(kind)]}: {_speed(bandwidth)} one way, "
                f"{count:,} links (a cable is two)"
            )
            self._text(1.1, y, text, 7.5)
            y -= 0.22


def _dims(dims: Sequence[int]) -> str:
    return " × ".join(map(str, dims))


def _speed(bandwidth: float) -> str:
    gigabytes = bandwidth / 1e9
    return f"{gigabytes:,.0f} GB/s" if gigabytes >= 1000 else f"{gigabytes:.4g} GB/s"


def _width(bandwidth: float) -> float:
    """Bytes per second → width of a line, in points."""
    return float(np.clip(np.log2(max(bandwidth, 1.0) / 4e9), 0.6, 9) / 2)


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


def _routers(topology: Topology) -> NDArray[np.int64]:
    """Return the switch that each GPU reaches first, by way of any NIC; -1 where there is none."""
    is_switch = topology.node_kind == NodeKind.SWITCH
    found = np.where(is_switch, np.arange(topology.n_nodes), -1)
    for _ in range(5):
        open_ = found[topology.source] < 0
        inner = ~is_switch[topology.source]
        np.maximum.at(found, topology.source[open_ & inner], found[topology.target[open_ & inner]])
    return found[topology.gpu]
