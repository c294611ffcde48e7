"""Tables of an experiment → their dataclasses; a wrong key → the tables that have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..base.errors import InputError
from ..base.schema import field_of
from .choices import (
    CalibrationChoice,
    ClusterChoice,
    DataChoice,
    KernelChoice,
    NetworkChoice,
    OverlapChoice,
    PriceChoice,
    RunChoice,
    ScaleChoice,
    VariationChoice,
)
from .framework import FrameworkOptions
from .models import Cnn, Dlrm, Transformer
from .plan import Plan
from .plan_options import MAIN_KEYS

__all__ = ["ALL_KEYS", "NAMED_BY", "PART_OF_PLAN", "TABLES", "table_of", "tables_with"]

TABLES: dict[str, Any] = {
    "plan": Plan,
    "framework": FrameworkOptions,
    "cluster": ClusterChoice,
    "data": DataChoice,
    "scale": ScaleChoice,
    "kernels": KernelChoice,
    "network": NetworkChoice,
    "overlap": OverlapChoice,
    "variation": VariationChoice,
    "calibration": CalibrationChoice,
    "prices": PriceChoice,
    "run": RunChoice,
}
"""Tables of the file besides ``[model]``, whose dataclass depends on its family.

``[framework]`` becomes a part of the plan.
"""

ALL_KEYS = "docs/experiments.md and 'mpisim new --all' explain all keys"

NAMED_BY = ("model.preset", "cluster.preset", "framework.name")
"""Keys that name what a table is about."""

PART_OF_PLAN = "framework"


def tables_with(key: str, given: str = "") -> str:
    """Unknown key → suggestion of the tables that have a key of its name.

    Parameters
    ----------
    key : str
        As given, without its table.
    given : str
        The table in which it was given; empty for the top level.

    Returns
    -------
    str
        `` (did you mean 'plan.tp'?)``, to be appended to a message; empty if no table has it.
    """
    homes = [*TABLES.items(), *(("model", cls) for cls in (Transformer, Cnn, Dlrm))]
    tables = [name for name, cls in homes if key in (each.name for each in fields(cls))]
    tables = [] if key == PART_OF_PLAN else tables
    tables += [
        f"plan.{group}" for group in MAIN_KEYS if field_of(Plan, f"{group}.{key}") is not None
    ]
    tables += ["model"] if key in ("preset", "hf_config") else []
    found = [f"{name}.{key}" for name in dict.fromkeys(tables) if name != given]
    return f" (did you mean {' or '.join(map(repr, found))}?)" if found else ""


def table_of(table: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    """Tables of an experiment, name of one → its keys; none where it is not given.

    Parameters
    ----------
    table : mapping
        The whole file.
    key : str
        Name of the table.
    source : str
        The file, for messages.

    Raises
    ------
    InputError
        If it is a value, not a table.
    """
    found = table.get(key, {})
    if not isinstance(found, dict):
        main = next((each for each in ("preset", "name") if f"{key}.{each}" in NAMED_BY), None)
        suggestion = f" (did you mean '{key}.{main}'?)" if main and isinstance(found, str) else ""
        raise InputError(
            f"{source}: key {key!r} is {found!r}; it must be a table, [{key}]{suggestion}"
        )
    return found
