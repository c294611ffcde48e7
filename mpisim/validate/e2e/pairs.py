"""Pairs of measured rows that differ in one thing: is its effect predicted?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .compare import Compared

__all__ = ["KINDS", "Pair", "pair_figures", "pairs"]

COMPARED_COLUMNS = (
    "model",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn_hidden",
    "num_experts",
    "seq_len",
    "gpu",
    "gpus_per_node",
    "num_gpus",
    "tp",
    "pp",
    "vpp",
    "dp",
    "cp",
    "ep",
    "etp",
    "sp",
    "zero_stage",
    "zero_group",
    "micro_batch",
    "global_batch",
    "precision",
    "precision_as_printed",
    "activation_recompute",
    "framework",
    "tp_overlap",
    "dp_overlap",
    "node_network_gbps",
    "source",
    "source_version",
)
"""Columns in which the rows of a pair are equal, but for those that its kind is about.

``precision`` has one word for all recipes of fp8; how a source prints it tells them apart.
"""

NOISE = "software release (noise)"
"""Rows equal in all that is modelled: the spread of repeated measurements."""

KINDS: dict[str, tuple[str, ...]] = {
    "ZeRO stage or scope": ("zero_stage", "zero_group"),
    "overlapped tensor parallelism": ("tp_overlap",),
    "recomputation": ("activation_recompute", "sp"),
    "weak scaling": ("num_gpus", "dp", "global_batch", "gpus_per_node", "zero_group"),
    "strong scaling": ("num_gpus", "dp", "gpus_per_node"),
    "micro-batch": ("micro_batch",),
    "batch": ("global_batch",),
    "length of sequences": ("seq_len", "micro_batch", "global_batch"),
    "precision": ("precision", "precision_as_printed"),
    "context parallelism": ("cp", "dp"),
    "pipeline": ("pp", "vpp", "dp"),
    "interleaving": ("vpp",),
    "tensor for data parallelism": ("tp", "dp"),
    "tensor for pipeline parallelism": ("tp", "pp", "vpp"),
    "expert parallelism": ("ep", "etp"),
    "GPU": ("gpu", "gpus_per_node", "node_network_gbps"),
    NOISE: ("source_version",),
}
"""Columns in which the rows of a pair may differ, the first of which they must."""

PREDICTED_RATIO_ERROR = 0.05
"""Error of a ratio within which its effect counts as predicted."""

SUMMARIES: dict[str, tuple[str, ...]] = {
    "ZeRO, overlap, recomputation or scale": (
        "ZeRO stage or scope",
        "overlapped tensor parallelism",
        "recomputation",
        "weak scaling",
        "strong scaling",
    ),
    "all but noise": tuple(kind for kind in KINDS if kind != NOISE),
}
"""Kinds taken together: one choice about a run on the same GPUs or more of them; all choices."""


class Pair(NamedTuple):
    """Two rows; ratios are of the second over the first."""

    kind: str
    first: Compared
    second: Compared

    @property
    def measured(self) -> float:
        """Ratio of the measured times."""
        return self.second.measured / self.first.measured

    @property
    def predicted(self) -> float:
        """Ratio of the predicted times."""
        return self.second.predicted / self.first.predicted

    @property
    def error(self) -> float:
        """Relative error of the ratio, signed."""
        return self.predicted / self.measured - 1

    @property
    def suspect(self) -> bool:
        """Whether one of the rows is marked suspect."""
        return any(each.row.texts["suspect"] for each in (self.first, self.second))


def pairs(rows: Sequence[Compared]) -> list[Pair]:
    """Compared rows → pairs of neighbours that differ in one setting, by `KINDS`.

    Parameters
    ----------
    rows : sequence of Compared
        Those of trust F are left out; of rows that differ in nothing the first is taken.

    Returns
    -------
    list of Pair
        Each with the next larger value of the setting.
    """
    measured = [each for each in rows if each.trust != "F"]
    found = []
    for kind, varying in KINDS.items():
        groups: dict[tuple[str, ...], dict[tuple[float, str], Compared]] = {}
        for each in measured:
            texts = each.row.texts
            same = tuple(texts.get(name, "") for name in COMPARED_COLUMNS if name not in varying)
            groups.setdefault(same, {}).setdefault(_place(each, varying[0]), each)
        for group in groups.values():
            ordered = [group[place] for place in sorted(group)]
            found += [Pair(kind, a, b) for a, b in pairwise(ordered)]
    return found


def _place(each: Compared, column: str) -> tuple[float, str]:
    """Order by number where the column has one, otherwise by text."""
    return float(each.row.integers.get(column, -1)), each.row.texts.get(column, "")


def pair_figures(found: Sequence[Pair]) -> dict[str, dict[str, Any]]:
    """Pairs of rows → figures of the errors of their ratios, by kind.

    Parameters
    ----------
    found : sequence of Pair

    Returns
    -------
    dict of str to dict
        By kind: n, mean and median error of the ratio, share within 5 %, and the pairs. Then the
        same of kinds taken together (`SUMMARIES`), and without pairs that have a suspect row where
        there are some.
    """
    groups = {kind: [each for each in found if each.kind == kind] for kind in KINDS}
    for name, kinds in SUMMARIES.items():
        group = [each for each in found if each.kind in kinds]
        sound = [each for each in group if not each.suspect]
        groups[name] = group
        if len(sound) < len(group):
            groups[f"{name}, without suspect rows"] = sound
    return {name: _figures(group) for name, group in groups.items() if group}


def _figures(group: Sequence[Pair]) -> dict[str, Any]:
    size = np.abs([each.error for each in group])
    return {
        "n": len(group),
        "mean": float(size.mean()),
        "median": float(np.median(size)),
        "within_5": float((size <= PREDICTED_RATIO_ERROR).mean()),
        "pairs": [
            {
                "first": each.first.row.id,
                "second": each.second.row.id,
                "measured": each.measured,
                "predicted": each.predicted,
                "error": each.error,
            }
            for each in group
        ],
    }
