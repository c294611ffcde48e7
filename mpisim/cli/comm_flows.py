"""``mpisim comm --flows``: the flows that a communication consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..topo.flows import Flow, FlowList

__all__ = ["COLUMNS", "flow_lines", "flow_object", "write_flows"]

MAX_FLOWS_PRINTED = 64
"""Flows printed; files have all."""

COLUMNS = (
    "step",
    "repeats",
    "channel",
    "sender",
    "receiver",
    "bytes",
    "origin",
    "destination",
    "links",
)
"""Headings of CSV files, and keys of flows in JSON."""

NOTE = """\
step: the first in which a flow is sent; it needs what its sender received in the channel's steps
before. repeats: steps in a row that send as much. bytes: of each step. for: the transfer that a
flow is a leg of, where that leads through another GPU (PXN)."""


def flow_lines(found: FlowList) -> list[str]:
    """Flows → lines for the terminal."""
    from ..base.text import aligned

    choice = found.choice
    how = f" {choice.protocol}" if choice.protocol else ""
    channels = choice.channels or found.ways
    head = ("step", "repeats", "channel", "sender", "receiver", "bytes", "for", "route")
    rows = [
        (
            str(flow.step),
            str(flow.repeats),
            str(flow.channel),
            flow.sender,
            flow.receiver,
            f"{flow.bytes:.10g}",
            _leg(flow),
            " ".join(map(found.topology.link_name, flow.links)),
        )
        for flow in found.flows[:MAX_FLOWS_PRINTED]
    ]
    n = len(found.flows)
    repeated = f", {found.transfers:,} if each step counts" if found.transfers > n else ""
    lines = [
        f"{choice.algorithm}{how}, {channels} channel{'s' if channels > 1 else ''}: "
        f"{n:,} flow{'s' if n > 1 else ''}{repeated}",
        "",
        *aligned([head, *rows], left=(3, 4, 6, 7)),
    ]
    if len(found.flows) > MAX_FLOWS_PRINTED:
        lines.append(f"... {len(found.flows) - MAX_FLOWS_PRINTED} more; --json and --csv write all")
    if found.ways > channels:
        lines += ["", f"{found.ways} ways through the network: a channel stands for several"]
    return [*lines, "", NOTE]


def _leg(flow: Flow) -> str:
    whole = (flow.sender, flow.receiver) == (flow.origin, flow.destination)
    return "-" if whole else f"{flow.origin}->{flow.destination}"


def _row(found: FlowList, flow: Flow) -> dict[str, Any]:
    row = flow._asdict()
    row["bytes"] = int(flow.bytes) if flow.bytes == int(flow.bytes) else flow.bytes
    row["links"] = [found.topology.link_name(link) for link in flow.links]
    return row


def flow_object(found: FlowList) -> dict[str, Any]:
    """Flows of a communication → JSON object: algorithm, protocol, channels, an entry a flow."""
    choice = found.choice
    return {
        "algorithm": choice.algorithm,
        "protocol": choice.protocol or "-",
        "channels": choice.channels or found.ways,
        "ways": found.ways,
        "flows": [_row(found, flow) for flow in found.flows],
    }


def write_flows(path: str, found: FlowList, *, overwrite: bool) -> None:
    """Write flows as CSV: a line of `COLUMNS`, then a line a flow, links apart by spaces.

    Parameters
    ----------
    path : str
    found : FlowList
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If it cannot be written; nothing is left behind.
    """
    from ..base.csv_files import write_table

    rows = (_row(found, flow) for flow in found.flows)
    lines = ([*(row[column] for column in COLUMNS[:-1]), " ".join(row["links"])] for row in rows)
    write_table(path, COLUMNS, lines, overwrite=overwrite)
