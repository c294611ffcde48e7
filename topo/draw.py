"""Pictures of topologies: a machine of each kind, above it the fabric by levels, or as a grid.

`picture_contents` says what is shown, `picture_places` where. Lines are as wide as their bandwidth
is large, on a logarithmic scale; the legend says how many cables there are of each kind and
bandwidth in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpisim.base.picture import check_picture, name_text, new_figure, save_picture

from .describe import LINK_WORDS, NODE_WORDS
from .picture_contents import Machine, Unit
from .picture_places import BOX, HIGH, LEFT, PITCH, Places
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
    """A drawing of everything at its place."""

    def __init__(self, topology: Topology) -> None:
        self.places = Places(topology)

    def figure(self) -> Any:
        """Draw the whole picture."""
        patches = import_module("matplotlib.patches")
        figure, axes = new_figure(self.places.width, self.places.height)
        self.patches, self.axes = patches, axes
        y = self.places.height - 0.38
        for line in self.places.title:
            axes.text(0.3, y, line, fontsize=11, fontweight="bold", parse_math=False)
            y -= 0.24
        axes.text(0.3, y - 0.02, self._left_out(), fontsize=7.5, color="#555", parse_math=False)
        for y, text in self.places.rows:
            self._text(LEFT - 0.18, y, text, 7.5, ha="right")
        for left, bottom, wide, high, machine in self.places.frames:
            self._frame(left, bottom, wide, high, machine)
        if self.places.is_grid:
            self._grid(self.places.grid_at)
        self._cables()
        for u, unit in enumerate(self.places.shown.units):
            if u in self.places.x:
                self._box(u, unit)
        self._legend()
        return figure

    def _left_out(self) -> str:
        """What the picture leaves out."""
        machines, units = self.places.shown.machines, self.places.shown.units
        parts = []
        if any(each.count > 1 for each in machines):
            parts.append("equal machines are shown once")
        if self.places.shown.hidden:
            parts.append(f"{self.places.shown.hidden:,} machines of further kinds are not shown")
        if any(unit.count > 1 and u in self.places.x for u, unit in enumerate(units)):
            parts.append("a stack is as many equal nodes as it says")
        if self.places.is_grid and self.places.is_cut():
            parts.append("further routers of the grid are not shown")
        parts.append("a wider line has more bandwidth")
        return "; ".join(parts)

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
        wide = self.places.wide.get(u, BOX)
        x, y = self.places.x[u] - wide / 2, self.places.y[u] - HIGH / 2
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
        self._text(
            self.places.x[u],
            self.places.y[u] - 0.005,
            text,
            6.5,
            color="white",
            ha="center",
            zorder=4,
        )

    def _cables(self) -> None:
        drawn: set[tuple[int, int, int, float]] = set()
        for cable in self.places.shown.cables:
            if cable.a == cable.b or cable.a not in self.places.x or cable.b not in self.places.x:
                continue
            key = (cable.a, cable.b, cable.kind, cable.bandwidth)
            if key in drawn:
                continue
            drawn.add(key)
            a, b = self._end(cable.a, cable.b), self._end(cable.b, cable.a)
            self._line(a, b, cable.kind, cable.bandwidth, 1.0 if cable.own else 0.28)

    def _end(self, u: int, v: int) -> tuple[float, float]:
        """Where a line from one unit to another begins: on a wide box below or above the other."""
        half = (self.places.wide.get(u, BOX) - BOX) / 2
        x = min(max(self.places.x[v], self.places.x[u] - half), self.places.x[u] + half)
        return x, self.places.y[u]

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
            up = (
                1
                if y > self.places.frames[0][1] + self.places.frames[0][3] or not self.places.frames
                else -1
            )
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
        topology = self.places.topology
        assert topology.grid is not None
        grid, sides = topology.grid, self.places.sides()
        router = _routers(topology)
        at: dict[int, tuple[float, float]] = {}
        place: dict[int, tuple[int, ...]] = {}
        for gpu, node in enumerate(router.tolist()):
            where = tuple(grid.place[gpu].tolist())
            if node < 0 or any(c >= side for c, side in zip(where, sides)):
                continue
            i, j, k = (*where, 0, 0)[:3]
            at[node] = (
                LEFT + 0.8 + i * self.places.cell[0] + k * self.places.oblique[0],
                bottom + j * self.places.cell[1] + k * self.places.oblique[1],
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
        if self.places.is_cut():
            lines.append(f"shown: {_dims(sides)}")
        if any(grid.wraps):
            lines.append("dotted: last to first" + (", or on" if self.places.is_cut() else ""))
        elif self.places.is_cut():
            lines.append("dotted: goes on")
        for i, text in enumerate(lines):
            self._text(LEFT - 0.18, bottom + 0.19 * (len(lines) - 1 - i), text, 7.5, ha="right")

    def _shape(self) -> str:
        assert self.places.topology.grid is not None
        return "torus" if any(self.places.topology.grid.wraps) else "mesh"

    def _stubs(self, at: dict[int, tuple[float, float]], place: dict[int, tuple[int, ...]]) -> None:
        """Show where a dimension goes on: around, or further than what is shown."""
        assert self.places.topology.grid is not None
        grid, sides = self.places.topology.grid, self.places.sides()
        ways = ((self.places.cell[0], 0.0), (0.0, self.places.cell[1]), self.places.oblique)
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
        for cable in self.places.shown.cables:
            ends = (cable.a, cable.b)
            inside = [u for u in ends if u in self.places.x]
            if len(inside) == 1 and cable.kind == LinkKind.NIC and cable.own:
                u = inside[0]
                self._line(
                    (self.places.x[u], self.places.y[u]), at[node], cable.kind, cable.bandwidth
                )

    # --- legend ---------------------------------------------------------------------------------

    def _legend(self) -> None:
        rows = self.places.legend
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


def _routers(topology: Topology) -> NDArray[np.int64]:
    """Return the switch that each GPU reaches first, by way of any NIC; -1 where there is none."""
    is_switch = topology.node_kind == NodeKind.SWITCH
    found = np.where(is_switch, np.arange(topology.n_nodes), -1)
    for _ in range(5):
        open_ = found[topology.source] < 0
        inner = ~is_switch[topology.source]
        np.maximum.at(found, topology.source[open_ & inner], found[topology.target[open_ & inner]])
    return found[topology.gpu]
