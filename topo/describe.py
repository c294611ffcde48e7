"""Topology → counts of nodes and links, capacities, as numbers and as text."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from mpisim.base.text import aligned

from .bounds import bisection, rails, sample_paths
from .topology import LinkKind, NodeKind, Topology

__all__ = ["capacity_figures", "render_topology", "topology_figures"]

INSIDE_NODES = (LinkKind.NVLINK, LinkKind.PCIE, LinkKind.HOST, LinkKind.SOCKET)
NODE_WORDS = {
    NodeKind.GPU: ("GPU", "GPUs"),
    NodeKind.NVSWITCH: ("NVSwitch domain", "NVSwitch domains"),
    NodeKind.PCIE: ("PCIe switch", "PCIe switches"),
    NodeKind.CPU: ("CPU", "CPUs"),
    NodeKind.NIC: ("NIC", "NICs"),
    NodeKind.SWITCH: ("switch", "switches"),
}
LINK_WORDS = {
    LinkKind.NVLINK: "NVLink, xGMI",
    LinkKind.PCIE: "PCIe",
    LinkKind.HOST: "GPU to CPU",
    LinkKind.SOCKET: "CPU to CPU",
    LinkKind.NIC: "to and from ports",
    LinkKind.FABRIC: "between switches",
}

MAX_KINDS = 12
"""Kinds of links inside nodes, and as many between nodes, that are listed."""


def topology_figures(topology: Topology) -> dict[str, Any]:
    """Topology → counts of nodes, and links by kind and bandwidth.

    Returns
    -------
    dict
        ``title``, ``gpus``, ``nics``, ``nodes`` (counts by kind), ``n_links``, ``links`` (a list of
        tables with ``kind``, ``count``, ``bandwidth`` in bytes/s and ``latency`` in s).
    """
    counts = np.bincount(topology.node_kind, minlength=len(NodeKind)).tolist()
    rows = Counter(
        zip(
            topology.kind.tolist(),
            topology.bandwidth.tolist(),
            topology.latency.tolist(),
            strict=True,
        )
    )
    return {
        "title": topology.title,
        "gpus": topology.n_gpus,
        "nics": topology.nics,
        "nodes": {kind.name.lower(): counts[kind] for kind in NodeKind if counts[kind]},
        "n_links": topology.n_links,
        "links": [
            {
                "kind": LinkKind(kind).name.lower(),
                "count": count,
                "bandwidth": bandwidth,
                "latency": latency,
            }
            for (kind, bandwidth, latency), count in sorted(
                rows.items(), key=lambda row: (row[0][0], -row[0][1], row[0][2])
            )
        ],
    }


def capacity_figures(topology: Topology) -> dict[str, Any]:
    """Topology → sample routes, bisection and rails, in bytes/s and s."""
    return {
        "bisection": bisection(topology),
        "rails": rails(topology),
        "paths": [vars(path) for path in sample_paths(topology)],
    }


def render_topology(found: dict[str, Any], test: dict[str, Any] | None = None) -> str:
    """Write `topology_figures`, and `capacity_figures` if given, for people.

    Parameters
    ----------
    found : dict
        From `topology_figures`.
    test : dict, optional
        From `capacity_figures`; by default the text has no part on capacity.

    Returns
    -------
    str
        Lines without a line feed at the end; bandwidths in GB/s, latencies in us.
    """
    counts = found["nodes"] | ({"nic": found["nics"]} if found["nics"] else {})
    nodes = [
        f"{count:,} {NODE_WORDS[kind][count > 1]}"
        for kind in NodeKind
        if (count := counts.get(kind.name.lower()))
    ]
    lines = [found["title"], ", ".join(nodes), ""]
    for head, inside in (("inside nodes", True), ("between nodes", False)):
        rows = [each for each in found["links"] if (_kind(each) in INSIDE_NODES) is inside]
        if not rows:
            continue
        cells = [(f"links {head}", "number", "GB/s", "latency us")]
        cells += [
            (
                f"  {LINK_WORDS[_kind(each)]}",
                f"{each['count']:,}",
                f"{each['bandwidth'] / 1e9:,.1f}",
                f"{each['latency'] * 1e6:.2f}",
            )
            for each in rows[:MAX_KINDS]
        ]
        lines += aligned(cells)
        if len(rows) > MAX_KINDS:
            lines.append(f"  and {len(rows) - MAX_KINDS} kinds more")
        lines.append("")
    lines.append(f"{found['n_links']:,} links; each has one direction, a cable is two of them")
    if test is not None:
        lines += ["", *_render_capacity(test)]
    return "\n".join(lines)


def _kind(row: dict[str, Any]) -> LinkKind:
    return LinkKind[row["kind"].upper()]


def _render_capacity(test: dict[str, Any]) -> list[str]:
    lines = [
        f"bisection: {test['bisection'] / 1e9:,.1f} GB/s from the first half of the GPUs to "
        "the second (largest flow)"
    ]
    ports = test["rails"]
    if ports:
        speeds = Counter(f"{speed / 1e9:,.1f}" for speed in ports.values())
        each = ", ".join(f"{count} of {speed} GB/s" for speed, count in speeds.items())
        lines.append(f"a node's ports into the fabric: {each}")
    lines.append("")
    for path in test["paths"]:
        lines.append(
            f"GPU {path['a']} to GPU {path['b']}: {path['bandwidth'] / 1e9:,.1f} GB/s, "
            f"{path['latency'] * 1e6:.2f} us"
        )
        lines.append("  " + "  ".join(path["links"][:12]) + _more(len(path["links"]) - 12))
    return lines


def _more(n: int) -> str:
    return f"  and {n} links more" if n > 0 else ""
