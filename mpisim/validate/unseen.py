"""Every chip predicted as if nothing of it had been measured → errors by chip and operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base.frozen import frozen
from ..kernels.fitting import UnseenChip, leave_each_chip_out, with_own_launch
from ..kernels.measured import MeasuredKernels
from .kernels import Compared, KernelErrors, compare, group_figures, model_maker, operator

__all__ = ["ChipErrors", "compare_unseen", "judge", "tabulate_chips"]

ANALYTICAL = "analytical"


@frozen
class ChipErrors:
    """Predictions of one chip's rows from constants that saw none of them.

    Attributes
    ----------
    chip : UnseenChip
    found : KernelErrors
        With the launches that the chip's own host takes.
    elsewhere : KernelErrors
        With those of other hosts, in the middle.
    """

    chip: UnseenChip
    found: KernelErrors
    elsewhere: KernelErrors


def compare_unseen(rows: Sequence[MeasuredKernels]) -> list[ChipErrors]:
    """Leave out each chip once, and predict it by the others.

    Parameters
    ----------
    rows : sequence of MeasuredKernels
        Of at least two chips in one family and format.
    """
    found = []
    for chip in leave_each_chip_out(rows):
        make = model_maker(ANALYTICAL, chip.calibration, [])
        elsewhere = compare(chip.rows, make, chip.calibration)
        alone = compare(chip.rows, make, chip.calibration, launched=False)
        groups: dict[tuple[str, str], list[Compared]] = {}
        for each in alone.compared:
            groups.setdefault((each.rows.family, each.rows.gpu), []).append(each)
        launched = [
            Compared(one.rows, seconds, one.error)
            for group in groups.values()
            for one, seconds in zip(
                group,
                with_own_launch([one.rows for one in group], [one.predicted for one in group]),
            )
        ]
        found.append(ChipErrors(chip, KernelErrors(launched, alone.skipped), elsewhere))
    return found


def tabulate_chips(chips: Sequence[ChipErrors]) -> dict[str, dict[str, Any]]:
    """Errors on unseen chips → tables by chip, and by chip and operator.

    Parameters
    ----------
    chips : sequence of ChipErrors

    Returns
    -------
    dict
        ``chip`` and ``chip, operator``: groups as of `kernels.tabulate`.
    """
    tables: dict[str, dict[str, Any]] = {"chip": {}, "chip, operator": {}}
    for each in chips:
        if not each.found.compared:
            continue
        relative, inside, names = _columns(each.found)
        tables["chip"][each.chip.name] = group_figures(relative, inside)
        for name in np.unique(names).tolist():
            here = names == name
            tables["chip, operator"][f"{each.chip.name}, {name}"] = group_figures(
                relative[here], inside[here]
            )
    return tables


def judge(chips: Sequence[ChipErrors], tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Errors on unseen chips → figures of all chips, each with equal weight.

    Parameters
    ----------
    chips : sequence of ChipErrors
    tables : mapping
        As of `tabulate_chips`.

    Returns
    -------
    dict
        ``chips``; ``mean`` of the chips' mean errors, the ``worst`` of them and whose it is; the
        least share of a chip's rows within the stated interval and whose it is; and the mean
        of the mean errors with launches of other hosts (``mean_elsewhere``).
    """
    of_chip = tables["chip"]
    worst = max(of_chip, key=lambda name: of_chip[name]["mape"])
    least = min(of_chip, key=lambda name: of_chip[name]["covered"])
    elsewhere = [
        float(np.abs(_columns(each.elsewhere)[0]).mean())
        for each in chips
        if each.elsewhere.compared
    ]
    return {
        "chips": len(of_chip),
        "mean": float(np.mean([each["mape"] for each in of_chip.values()])),
        "mean_elsewhere": float(np.mean(elsewhere)),
        "worst": of_chip[worst]["mape"],
        "worst_chip": worst,
        "least_covered": of_chip[least]["covered"],
        "least_covered_chip": least,
    }


def _columns(found: KernelErrors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return relative error, whether it is within the interval, and operator, of each row."""
    names = [
        operator(kernel, op)
        for each in found.compared
        for kernel, op in zip(each.rows.kernels, each.rows.op.tolist())
    ]
    return (
        np.concatenate([each.relative for each in found.compared]),
        np.concatenate([each.inside for each in found.compared]),
        np.array(names),
    )
