"""Experiments whose work is a program file: ``[workload]`` in place of ``[model]`` and ``[plan]``.

What ranks do and how long their kernels take stands in the program. All else is asked for as in
any experiment: ``[cluster]``, ``[network]``, ``[overlap]``, ``[variation]`` and ``[run]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..base.errors import InputError, UsageError, nearest
from ..base.schema import build, defaults
from .experiment import ClusterChoice, NetworkChoice, RunChoice, with_defaults_kept
from .overlap import OverlapChoice
from .variation import VariationChoice

__all__ = ["ProgramChoices", "ProgramExperiment", "WorkloadChoice", "of_program"]

TABLES: dict[str, Any] = {
    "cluster": ClusterChoice,
    "network": NetworkChoice,
    "overlap": OverlapChoice,
    "variation": VariationChoice,
    "run": RunChoice,
}
"""What can be asked for of a program."""

SETTLED = ("model", "plan", "kernels", "calibration")
"""Tables of other experiments that a program has settled."""


@dataclass(frozen=True)
class WorkloadChoice:
    """What is simulated.

    Attributes
    ----------
    program : str
        A program file, its path relative to the experiment's: what ``mpisim run --save-program``,
        ``mpisim replay --save-program`` and ``mpisim program import`` have written.
    """

    program: str


@dataclass(frozen=True)
class ProgramExperiment:
    """An experiment whose work is a program file that was not read yet.

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


@dataclass(frozen=True)
class ProgramChoices:
    """What was asked for of a program that does not say which experiment it is of.

    Attributes
    ----------
    cluster : ClusterChoice, optional
        None where it needs none: all of its communications have durations.
    network : NetworkChoice
    overlap : OverlapChoice
    variation : VariationChoice
    source : str
    defaulted : mapping of str to object
        As of an `Experiment`.
    """

    cluster: ClusterChoice | None
    network: NetworkChoice
    overlap: OverlapChoice
    variation: VariationChoice
    source: str
    defaulted: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, tables: Mapping[str, dict[str, Any]], source: str) -> ProgramChoices:
        """Make of tables as they were given.

        Raises
        ------
        InputError
        """
        given = {key: tables.get(key, {}) for key in ("cluster", "network", "overlap", "variation")}
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
        return with_defaults_kept(self, self.defaulted)


def of_program(table: Mapping[str, Any], source: str) -> ProgramExperiment:
    """Return an experiment of a program from its parsed tables.

    Raises
    ------
    InputError
        Naming the file and the key.
    """
    allowed = ("title", "workload", *TABLES)
    for key, found in table.items():
        if key in SETTLED:
            first = next(iter(found), "") if isinstance(found, dict) else ""
            name = f"{key}.{first}" if first else key
            raise UsageError(
                f"{source}: key {name!r} is given, but the program has settled it: what ranks do "
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
