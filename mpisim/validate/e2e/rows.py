"""Tables of measured training steps → rows: one configuration that was run and timed each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from ...base.csv_files import CsvRow, read_table
from ...base.errors import InputError, nearest
from ...base.frozen import frozen

__all__ = ["COLUMNS", "Row", "read"]

INTEGERS = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn_hidden",
    "vocab",
    "num_experts",
    "topk",
    "moe_ffn",
    "seq_len",
    "gpus_per_node",
    "num_gpus",
    "tp",
    "pp",
    "vpp",
    "dp",
    "cp",
    "ep",
    "etp",
    "zero_stage",
    "zero_group",
    "micro_batch",
    "global_batch",
)

NUMBERS = ("params_b", "step_time_ms", "step_time_ms_via_flops", "node_network_gbps")

FLAGS = ("sp", "tp_overlap", "dp_overlap")

TEXTS = (
    "id",
    "source",
    "model",
    "gpu",
    "precision",
    "activation_recompute",
    "framework",
    "trust",
    "suspect",
    "step_time_basis",
)

COLUMNS = (*TEXTS, *INTEGERS, *NUMBERS, *FLAGS)
"""What a table may have; other columns are kept, and not looked at."""

TABLES = ("model", "plan", "framework", "cluster", "kernels", "network", "overlap", "variation")
"""Tables of an experiment of which a column may state a key: ``model.lora_rank``."""

NEEDED = ("id", "model", "gpu", "num_gpus", "trust", "step_time_ms")
"""Columns that no table can do without."""

TRUST = ("A", "B", "C", "F")


@frozen
class Row:
    """One measured configuration.

    Attributes
    ----------
    where : str
        File and line, for messages.
    texts : mapping of str to str
        Every column as it stands in the table.
    numbers : mapping of str to float
        The columns `NUMBERS` that are not blank.
    integers : mapping of str to int
        The columns `INTEGERS` that are not blank; of micro-batches only whole ones.
    flags : mapping of str to bool
        The columns `FLAGS` that are not blank.
    keys : mapping of str to str
        The columns that are named like keys of an experiment (`TABLES`) and are not blank.
    """

    where: str
    texts: Mapping[str, str]
    numbers: Mapping[str, float]
    integers: Mapping[str, int]
    flags: Mapping[str, bool]
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Its name."""
        return self.texts["id"]

    @property
    def seconds(self) -> float | None:
        """Measured seconds of a step, if they were measured and not derived from FLOP/s."""
        found = self.numbers.get("step_time_ms")
        return None if found is None else found / 1e3

    @property
    def without_optimizer(self) -> bool:
        """Whether the optimizer's part is not in the measured time."""
        return "EXCLUDES optimizer" in self.texts["step_time_basis"]


def read(path: str | Path) -> list[Row]:
    """Read a table.

    Parameters
    ----------
    path : str or Path
        CSV in UTF-8 with a line of headings, among them `NEEDED`; others of `COLUMNS` that are not
        there are blank in every row.

    Raises
    ------
    InputError
        If it cannot be read, a column is missing, or a value is not what its column holds; the
        message names file, line and column.
    """
    _, table = read_table(path, lambda headings: _check_headings(headings, path))
    rows = [_row(cells, f"{path}:{line}") for line, cells in table]
    known: dict[str, str] = {}
    for row in rows:
        if row.id in known:
            raise InputError(f"{row.where}: id {row.id!r} is also at {known[row.id]}")
        known[row.id] = row.where
    return rows


def _check_headings(headings: list[str], path: str | Path) -> None:
    others = [each for each in headings if each not in COLUMNS]
    for name in COLUMNS:
        if name in headings:
            continue
        near = nearest(name, others)
        if name in NEEDED or near:  # one that is misspelt must not count as blank
            raise InputError(
                f"{path}: there is no column {name!r}{near}; it needs {', '.join(NEEDED)}, and "
                "may have those of docs/accuracy.md"
            )
    for name in others:
        table, dot, _ = name.partition(".")
        if dot and table not in TABLES:
            raise InputError(
                f"{path}: column {name!r} is no key of an experiment{nearest(table, TABLES)}; "
                f"tables: {', '.join(TABLES)}"
            )


def _row(cells: CsvRow, where: str) -> Row:
    texts = {**dict.fromkeys(COLUMNS, ""), **dict(cells)}
    for name in ("id", "model", "gpu", "num_gpus"):
        if not texts[name]:
            raise InputError(f"{where}: column {name!r} is blank; every row needs it")
    if texts["trust"] not in TRUST:
        raise InputError(
            f"{where}: column 'trust' is {texts['trust']!r}; allowed: {', '.join(TRUST)}"
        )
    numbers = {name: _number(texts[name], name, where) for name in NUMBERS if texts[name]}
    integers = {}
    for name in INTEGERS:
        if texts[name]:
            value = _number(texts[name], name, where)
            if name == "micro_batch" and value != int(value):
                continue  # a mean over ranks: nothing that can be run
            if value != int(value):
                raise InputError(f"{where}: column {name!r} is {texts[name]!r}; it must be whole")
            integers[name] = int(value)
    flags = {}
    for name in FLAGS:
        word = texts[name].lower()
        if word not in ("", "true", "false"):
            raise InputError(
                f"{where}: column {name!r} is {texts[name]!r}; allowed: true, false, or nothing"
            )
        if word:
            flags[name] = word == "true"
    keys = {name: text for name, text in texts.items() if text and "." in name}
    return Row(where, texts, numbers, integers, flags, keys)


def _number(text: str, name: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    least = 0 if name == "zero_stage" else 1e-9
    if not math.isfinite(value) or value < least:
        raise InputError(
            f"{where}: column {name!r} is {text!r}; it must be a number"
            f"{', 0 or more' if least == 0 else ' above 0'}, or nothing"
        )
    return value
