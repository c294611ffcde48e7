"""Files of packet runs (HDF5), and tables of their flows (CSV).

title                     text: what was sent, over what
settings/                 attributes: parameters by key of data/packets.toml (in bytes, seconds and
                          bytes per second), routing, congestion, recovery, switching, pfc, seed
flows/                    sender, receiver, channel (texts); bytes (of all its steps), begin, end
                          (ps)
links/                    name (texts); bytes, packets, marked, queue_max, queue_mean (B), dropped,
                          pauses, paused (ps): of the links that anything went over
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mpisim.base.csv_files import write_table
from mpisim.base.hdf5 import create_file
from mpisim.base.hdf5_data import write_column, write_texts
from mpisim.base.quantity import PICOSECONDS

from .run import PacketRun

__all__ = ["FORMAT", "write_flow_table", "write_packets"]

FORMAT, VERSION = "mpisim-packets", 1

FLOW_COLUMNS = ("sender", "receiver", "channel", "bytes", "begin", "end")
"""Of a table of flows; times in seconds."""


def write_packets(
    path: str | Path, title: str, found: PacketRun, *, overwrite: bool = False
) -> None:
    """Write a run; the file appears whole or not at all. Local.

    Parameters
    ----------
    path : str or Path
    title : str
        What was sent, over what.
    found : PacketRun
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    flows = found.flows
    with create_file(path, FORMAT, VERSION, overwrite=overwrite) as file:
        write_texts(file, "title", [title])
        settings = found.settings
        group = file.create_group("settings")
        for name in ("routing", "congestion", "recovery", "switching", "pfc", "seed"):
            group.attrs[name] = getattr(settings, name)
        for name, value in settings.parameters.items():
            group.attrs[name] = value
        group = file.create_group("flows")
        for name in ("sender", "receiver", "channel"):
            write_texts(group, name, [getattr(flow, name) for flow in flows])
        sent = np.array([flow.bytes * flow.repeats for flow in flows], np.int64)
        write_column(group, "bytes", sent, "B")
        write_column(group, "begin", found.flow_begin, "ps")
        write_column(group, "end", found.flow_end, "ps")
        (used,) = np.nonzero(found.link_packets)
        group = file.create_group("links")
        write_texts(group, "name", [found.topology.link_name(link) for link in used.tolist()])
        for name, values, unit in (
            ("bytes", found.link_bytes, "B"),
            ("packets", found.link_packets, "1"),
            ("marked", found.link_marked, "1"),
            ("queue_max", found.queue_max, "B"),
            ("queue_mean", found.queue_mean, "B"),
            ("dropped", found.dropped, "1"),
            ("pauses", found.pauses, "1"),
            ("paused", found.paused, "ps"),
        ):
            write_column(group, name, values[used], unit)


def write_flow_table(path: str | Path, found: PacketRun, *, overwrite: bool = False) -> None:
    """Write when each flow began and ended, as CSV: a line of `FLOW_COLUMNS`, then a line a flow.

    Parameters
    ----------
    path : str or Path
    found : PacketRun
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If it cannot be written; nothing is left behind.
    """
    times = zip(found.flow_begin.tolist(), found.flow_end.tolist(), strict=True)
    rows = (
        (
            *(flow.sender, flow.receiver, flow.channel, flow.bytes * flow.repeats),
            *(f"{time / PICOSECONDS:.9g}" for time in ends),
        )
        for flow, ends in zip(found.flows, times, strict=True)
    )
    write_table(path, FLOW_COLUMNS, rows, overwrite=overwrite)
