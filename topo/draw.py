"""Pictures of topologies: rows of switches, NICs and GPUs, the fabric on top."""

from __future__ import annotations

from html import escape
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpisim.base.errors import InputError
from mpisim.base.files import write_whole

from .topology import LinkKind, NodeKind, Topology

__all__ = ["draw", "positions"]

MAX_NODES = 2000
"""Nodes that a picture may have."""

_ROW_OF_KIND = {
    NodeKind.SWITCH: 1,
    NodeKind.NIC: 2,
    NodeKind.CPU: 3,
    NodeKind.PCIE: 4,
    NodeKind.GPU: 5,
    NodeKind.NVSWITCH: 6,
}
_COLOUR = {
    NodeKind.GPU: "#76b900",
    NodeKind.NVSWITCH: "#3d7a00",
    NodeKind.PCIE: "#f0a030",
    NodeKind.CPU: "#c04040",
    NodeKind.NIC: "#5080d0",
    NodeKind.SWITCH: "#303060",
}
_LINK_COLOUR = {
    LinkKind.NVLINK: "#76b900",
    LinkKind.PCIE: "#f0a030",
    LinkKind.HOST: "#f0a030",
    LinkKind.SOCKET: "#c04040",
    LinkKind.NIC: "#5080d0",
    LinkKind.FABRIC: "#303060",
}
_DX, _DY = 84, 90


def draw(topology: Topology, path: str | Path) -> None:
    """Draw a topology, replacing a file of that name.

    Parameters
    ----------
    topology : Topology
    path : str or Path
        Ends in ``.svg``, or in ``.png`` or ``.pdf``, which need matplotlib.

    Raises
    ------
    InputError
        If there is too much to draw, the ending is another, or matplotlib is missing.
    OutputError
        If the file cannot be written.
    """
    ending = Path(path).suffix.lower()
    if ending not in (".svg", ".png", ".pdf"):
        raise InputError(f"{path}: pictures end in .svg, .png or .pdf")
    if topology.n_nodes > MAX_NODES:
        raise InputError(
            f"{topology.title}: {topology.n_nodes:,} nodes are too many to draw, at most "
            f"{MAX_NODES:,}; draw fewer nodes of the cluster (--nodes)"
        )
    if ending == ".svg":
        with write_whole(path, overwrite=True) as file:
            file.write(_svg(topology).encode())
        return
    try:
        Figure = import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise InputError(
            f"{path}: {ending} needs matplotlib, which is not installed; install it or draw .svg"
        ) from error
    at = positions(topology)
    figure = Figure(figsize=(max(4.0, at[:, 0].max() / _DX), max(3.0, at[:, 1].max() / _DY)))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.invert_yaxis()
    for a, b, colour, width in _strokes(topology):
        axes.plot(*at[[a, b]].T, color=colour, linewidth=width, zorder=1)
    for node, name in enumerate(topology.names):
        colour = _COLOUR[NodeKind(topology.node_kind[node])]
        axes.text(
            *at[node],
            name,
            fontsize=6,
            ha="center",
            va="center",
            color="white",
            bbox={"facecolor": colour, "edgecolor": "none", "boxstyle": "round"},
        )
    with write_whole(path, overwrite=True) as file:
        figure.savefig(file, format=ending[1:], dpi=150)


def positions(topology: Topology) -> NDArray[np.float64]:
    """Return the position of each node, x and y, shape (n_nodes, 2).

    Rows by kind; the switches of a fabric in rows of their own, by their distance from ports. In a
    row nodes keep their order, and are spread evenly.
    """
    row = np.array([_ROW_OF_KIND[NodeKind(kind)] for kind in topology.node_kind.tolist()], float)
    switch = topology.node_kind == NodeKind.SWITCH
    level = np.where(switch, np.inf, 0.0)
    inner = switch[topology.target]
    for _ in range(4):  # ports to core: three rows at most, and grids have one
        np.minimum.at(level, topology.target[inner], level[topology.source[inner]] + 1)
    level[np.isinf(level)] = 1
    row = np.where(switch, 2 - level, row)
    width = int(np.unique(row, return_counts=True)[1].max(initial=1)) * _DX
    at = np.empty((topology.n_nodes, 2))
    for y, value in enumerate(np.unique(row)):
        (members,) = np.nonzero(row == value)
        at[members, 0] = (np.arange(len(members)) + 0.5) * width / len(members)
        at[members, 1] = (y + 0.5) * _DY
    return at


def _strokes(topology: Topology) -> list[tuple[int, int, str, float]]:
    """Return one line for each cable: ends, colour, and a width that grows with the bandwidth."""
    ends = np.sort(np.stack([topology.source, topology.target], axis=1), axis=1)
    pairs, first = np.unique(ends, axis=0, return_index=True)
    widths = np.clip(np.log2(topology.bandwidth[first] / 4e9), 0.5, 8) / 2
    return [
        (a, b, _LINK_COLOUR[LinkKind(topology.kind[link])], round(float(width), 2))
        for (a, b), link, width in zip(pairs.tolist(), first.tolist(), widths, strict=True)
    ]


def _svg(topology: Topology) -> str:
    at = positions(topology)
    width, height = int(at[:, 0].max() + _DX), int(at[:, 1].max() + _DY)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="10" text-anchor="middle">',
        f"<title>{escape(topology.title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for a, b, colour, stroke in _strokes(topology):
        (x, y), (u, v) = at[a], at[b]
        bend = 0.0 if y != v else min(40.0, 12 + abs(u - x) / 12)  # over the nodes between
        lines.append(
            f'<path d="M{x:.1f} {y:.1f}Q{(x + u) / 2:.1f} {(y + v) / 2 - 2 * bend:.1f} '
            f'{u:.1f} {v:.1f}" fill="none" stroke="{colour}" stroke-width="{stroke}"/>'
        )
    for node, name in enumerate(topology.names):
        x, y = at[node]
        colour = _COLOUR[NodeKind(topology.node_kind[node])]
        short = name.rpartition(".")[2] if len(name) > 12 else name
        lines.append(
            f'<g><title>{escape(name)}</title><rect x="{x - _DX * 0.45:.1f}" y="{y - 11:.1f}" '
            f'width="{_DX * 0.9:.1f}" height="22" rx="5" fill="{colour}"/>'
            f'<text x="{x:.1f}" y="{y + 4:.1f}" fill="white">{escape(short)}</text></g>'
        )
    return "\n".join([*lines, "</svg>", ""])
