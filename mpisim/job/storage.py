"""Storage that checkpoints are written to and read from (``data/storage.toml``)."""

from __future__ import annotations

import math

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.presets import find_table, table_names
from ..base.quantity import Quantity
from ..base.schema import build

__all__ = ["FILE", "Storage", "find_storage", "storage_names"]

FILE = "storage.toml"


@frozen
class Storage:
    """Bytes a second of a storage; what is not given does not limit.

    Attributes
    ----------
    title : str
    node_write, node_read : Quantity, optional
        Of one node.
    total_write, total_read : Quantity, optional
        Of all nodes together.
    aliases : tuple of str
    """

    title: str
    node_write: Quantity | None = None
    node_read: Quantity | None = None
    total_write: Quantity | None = None
    total_read: Quantity | None = None
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for way in ("write", "read"):
            rates = [getattr(self, f"node_{way}"), getattr(self, f"total_{way}")]
            if all(rate is None for rate in rates):
                raise InputError(f"needs one of node_{way} and total_{way}")
            for rate in rates:
                if rate is not None and (not rate.value or not rate.unit.endswith("B/s")):
                    raise InputError(f"to {way}: {rate.value} {rate.unit} is no bandwidth")

    def seconds(self, way: str, node: float, total: float) -> float:
        """Bytes of the fullest node, bytes of all → seconds, whichever of both limits.

        Parameters
        ----------
        way : {"write", "read"}
        node, total : float
            Bytes.
        """
        each: Quantity | None = getattr(self, f"node_{way}")
        whole: Quantity | None = getattr(self, f"total_{way}")
        return max(
            0.0 if each is None else node / each.si, 0.0 if whole is None else total / whole.si
        )

    def error(self, way: str) -> float:
        """Return the relative error bar of what limits: the larger of the two."""
        rates = (getattr(self, f"node_{way}"), getattr(self, f"total_{way}"))
        return max((rate.error for rate in rates if rate is not None), default=math.nan)


def find_storage(wanted: str) -> tuple[str, Storage]:
    """Name or path → name and storage.

    Raises
    ------
    InputError
    """
    found = find_table(wanted, FILE, "storage")
    return found.name, build(Storage, found.table, found.source, found.name)


def storage_names() -> list[str]:
    """Return the names of the storages that come with mpisim."""
    return table_names(FILE)
