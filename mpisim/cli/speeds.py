"""Command-line options → a cluster with other bandwidths than its file states."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..topo import Cluster

__all__ = ["add_speed_options", "given_speeds", "with_speed_options"]

OPTIONS = {
    "nic_bandwidth": ("RATE", 'line rate of one NIC, as "800 Gb/s", in place of the cluster\'s'),
    "link_bandwidth": (
        "RATE",
        'what one GPU sends over all its NVLink or xGMI, one direction, usable, as "371 GB/s"',
    ),
    "pcie_bandwidth": ("RATE", 'of one PCIe connection, usable, as "63 GB/s"'),
    "nics": ("N", "NICs of a node"),
}
"""By key of `mpisim.topo.speeds.SPEEDS`: placeholder of its value, and its help."""


def add_speed_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--nic-bandwidth``, ``--link-bandwidth``, ``--pcie-bandwidth`` and ``--nics``."""
    for key, (metavar, text) in OPTIONS.items():
        kind: Any = int if metavar == "N" else str
        parser.add_argument(_option(key), metavar=metavar, type=kind, help=text)


def given_speeds(args: argparse.Namespace) -> dict[str, str | float]:
    """Return the speeds that were given, by key."""
    return {key: getattr(args, key) for key in OPTIONS if getattr(args, key) is not None}


def with_speed_options(cluster: Cluster, args: argparse.Namespace) -> Cluster:
    """Cluster, speeds that were given → the cluster with these.

    Notes say what then holds its NICs back, and that its links are faster than its GPUs have.

    Raises
    ------
    UsageError
        If the cluster has no use for one, or it cannot be.
    """
    from ..base.errors import InputError, UsageError
    from ..kernels import find_gpu
    from ..prediction.hardware import link_excess
    from ..topo.speeds import nic_bottleneck, with_speeds

    given = given_speeds(args)
    if not given:
        return cluster
    try:
        found = with_speeds(cluster, given, _option)
    except InputError as error:
        raise UsageError(str(error)) from error
    for note in (nic_bottleneck(found), link_excess(found, find_gpu(found.gpu))):
        if note is not None:
            print(f"mpisim: note: {note}", file=sys.stderr)
    return found


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"
