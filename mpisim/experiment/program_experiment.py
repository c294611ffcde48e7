"""Experiments of a program file: ``[workload]`` in place of ``[model]`` and ``[plan]``.

The program file holds the rows of all ranks and how long kernels take. Everything else is a choice
as in any experiment: ``[cluster]``, ``[scale]``, ``[network]``, ``[overlap]``, ``[variation]`` and
``[run]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ..base.errors import InputError, UsageError, nearest
from ..base.frozen import frozen
from ..base.schema import build, defaults
from .choices import (
    ClusterChoice,
    NetworkChoice,
    OverlapChoice,
    RunChoice,
    ScaleChoice,
    VariationChoice,
)
from .experiment import keys_at_defaults

__all__ = ["ProgramChoices", "ProgramExperiment", "WorkloadChoice", "program_experiment"]

TABLES: dict[str, Any] = {
    "cluster": ClusterChoice,
    "scale": ScaleChoice,
    "network": NetworkChoice,
    "overlap": OverlapChoice,
    "variation": VariationChoice,
    "run": RunChoice,
}
"""Tables that an experiment of a program file may have besides ``[workload]``."""

FIXED_TABLES = ("model", "plan", "kernels", "calibration")
"""Tables of other experiments that a program file fixes: it holds their outcome."""


@frozen
class WorkloadChoice:
    """The table ``[workload]``: which program file is simulated.

    Attributes
    ----------
    program : str
        A program file, its path relative to the experiment's: what ``mpisim run --save-program``,
        ``mpisim replay --save-program`` and ``mpisim program import`` have written.
    """

    program: str


@frozen
class ProgramExperiment:
    """An experiment of a program file, which is not read yet.

    Attributes
    ----------
    program : str
        Path of the file.
    tables : dict of str to dict
        Of `TABLES`, those that were given.
    title : str, optional
    source : str
        The file it was read from, for messages; paths in it are relative to its folder.
    """

    program: str
    tables: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    title: str | None = None
    source: str = "experiment"


@frozen
class ProgramChoices:
    """Choices for a program file that does not say which experiment it was written from.

    Attributes
    ----------
    cluster : ClusterChoice, optional
        None where it needs none: all of its communications have durations.
    scale : ScaleChoice
    network : NetworkChoice
    overlap : OverlapChoice
    variation : VariationChoice
    source : str
    defaulted : mapping of str to object
        As of an `Experiment`.
    """

    cluster: ClusterChoice | None
    scale: ScaleChoice
    network: NetworkChoice
    overlap: OverlapChoice
    variation: VariationChoice
    source: str
    defaulted: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, tables: Mapping[str, dict[str, Any]], source: str) -> ProgramChoices:
        """Build from the tables of the file.

        Parameters
        ----------
        tables : mapping of str to dict
            Those given, by name; what is missing has defaults.
        source : str
            The file they were read from, for messages.

        Raises
        ------
        InputError
        """
        keys = ("cluster", "scale", "network", "overlap", "variation")
        given = {key: tables.get(key, {}) for key in keys}
        parts: dict[str, Any] = {
            key: None if key == "cluster" and not table else build(TABLES[key], table, source, key)
            for key, table in given.items()
        }
        left: dict[str, object] = {}
        for key, table in given.items():
            if parts[key] is not None:
                left |= defaults(TABLES[key], table, key)
        return cls(**parts, source=source, defaulted=left)

    def left_to_defaults(self) -> dict[str, object]:
        """Return the keys that were not given and have kept their defaults, with these."""
        return keys_at_defaults(self, self.defaulted)


def program_experiment(table: Mapping[str, Any], source: str) -> ProgramExperiment:
    """Build an experiment of a program file from the parsed tables of its TOML file.

    Parameters
    ----------
    table : mapping
        The whole file; must have the key ``workload``.
    source : str
        The file it was read from, for messages; paths in it are relative to its folder.

    Raises
    ------
    InputError
        Naming the file and the key.
    """
    allowed = ("title", "workload", *TABLES)
    for key, found in table.items():
        if key in FIXED_TABLES:
            first = next(iter(found), "") if isinstance(found, dict) else ""
            name = f"{key}.{first}" if first else key
            raise UsageError(
                f"{source}: key {name!r} is given, but the program file fixes it: what ranks do "
                f"and how long kernels take; allowed: {', '.join(TABLES)}"
            )
        if key not in allowed:
            raise InputError(
                f"{source}: unknown key {key!r} at the top level{nearest(key, allowed)}; "
                f"allowed: {', '.join(allowed)}"
            )
        if key in TABLES and not isinstance(found, dict):
            raise InputError(f"{source}: key {key!r} is {found!r}; it must be a table, [{key}]")
    workload = table["workload"]
    if not isinstance(workload, dict):
        raise InputError(
            f"{source}: key 'workload' is {workload!r}; it must be a table, [workload]"
        )
    title = table.get("title")
    if title is not None and not isinstance(title, str):
        raise InputError(f"{source}: key 'title' is {title!r}; it must be a text in quotes")
    choice = build(WorkloadChoice, workload, source, "workload")
    tables = {key: dict(table[key]) for key in TABLES if key in table}
    return ProgramExperiment(choice.program, tables, title, source)
