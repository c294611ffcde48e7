"""Residuals of steps → error of the model with which intervals hold as much as they say.

The steps of one publisher are off together, and one with many steps would decide alone: where it is
asked for, intervals hold as much when each publisher counts the same as when each step does.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from ...base.presets import packaged
from ...base.quantity import Z_90

__all__ = ["FOUND", "KEPT", "counted_by", "not_narrower", "publisher", "sufficient_error"]

FILE = "validation/publishers.toml"

HOSTS = ("gist.github.com",)
"""Sites whose addresses have the owner behind the name of the site."""

MIN_PUBLISHERS = 3
"""Publishers from which each counts the same: of fewer, one that is far off would decide alone."""

INTERVAL_SHARE = 0.9
"""Of rows that the interval is to hold."""

ROUNDING = 1e-9
"""Of sums of shares of rows."""

FOUND = "when it was found, "
"""Before the source of an error that is kept: what it says of intervals is of that day."""

KEPT = "; kept, as it is larger than what was found later: "
"""What stands in a source between that of an error kept and what was found later."""


@cache
def publisher(source: str) -> str:
    """Source of a row → who published it.

    That is the owner of the repository or gist, the author or organization of the paper or page. Of
    several names that are one's, and where the source's first word is no owner, ``publishers.toml``
    says who, by how a word of the source begins; of what it does not know the title stands for the
    author.

    Parameters
    ----------
    source : str
        As the column ``source`` of tables of steps has it.

    Examples
    --------
    >>> publisher("QwenLM/Qwen README.md, 'Profiling'"), publisher("NVIDIA-NeMo/Automodel README")
    ('QwenLM', 'NVIDIA')
    >>> publisher("'Scaling' report, 2026-04-20")
    "'Scaling' report"
    """
    for name, texts in packaged(FILE).items():
        if any(re.search(rf"(?<!\S){re.escape(text)}", source) for text in texts):
            return str(name)
    first = source.split()[0].rstrip(",:;") if source.split() else source
    if "/" in first:
        site, _, path = first.partition("/")
        return path.partition("/")[0] if site in HOSTS else site
    return source.partition(",")[0]


def sufficient_error(
    residuals: Sequence[float],
    inputs: Sequence[float],
    publishers: Sequence[str] | None = None,
) -> float:
    """Residuals → least error of the model with which intervals hold 90 % of rows.

    Parameters
    ----------
    residuals : sequence of float
        Logarithms of predicted over measured steps.
    inputs : sequence of float
        Relative error bars from what the steps depend on.
    publishers : sequence of str, optional
        Of each row. Then 90 % are held whichever way is counted: each row the same, and each
        publisher the same, whatever the number of its rows. Fewer than `MIN_PUBLISHERS` say
        nothing.
    """
    if not len(residuals):
        return 0.0
    # Row i is inside where error² >= (residual / Z_90)² - inputs².
    needed = np.maximum((np.array(residuals) / Z_90) ** 2 - np.array(inputs) ** 2, 0.0)
    order = np.argsort(needed, kind="stable")
    weights = [np.full(len(needed), 1 / len(needed))]
    if publishers is not None and _are_counted(publishers):
        rows = Counter(publishers)
        weights.append(np.array([1 / (len(rows) * rows[each]) for each in publishers]))
    last = max(
        int(np.searchsorted(np.cumsum(each[order]), INTERVAL_SHARE - ROUNDING)) for each in weights
    )
    return math.sqrt(needed[order[min(last, len(order) - 1)]])


def counted_by(publishers: Sequence[str]) -> str:
    """Publishers of rows → how `sufficient_error` counts them: ", by rows and by publishers (7)".

    Nothing where they are too few to count.
    """
    if not _are_counted(publishers):
        return ""
    return f", by rows and by publishers ({len(set(publishers))})"


def _are_counted(publishers: Sequence[str]) -> bool:
    return len(set(publishers)) >= MIN_PUBLISHERS


def not_narrower(
    error: float, source: str, before: Mapping[str, object] | None
) -> tuple[float, str]:
    """Error found and its source, entry of a file before → error to write and its source.

    Parameters
    ----------
    error : float
        Relative standard deviation, as `sufficient_error` finds it.
    source : str
    before : Mapping or None
        With the keys ``error`` and ``source``; None if there is no such entry.

    Returns
    -------
    tuple of (float, str)
        The larger error. That of before has its own source behind `FOUND` and, behind `KEPT`, what
        was found now.
    """
    error = round(error, 3)
    if before is None or float(str(before["error"])) <= error:
        return error, source
    first = str(before["source"]).split(KEPT)[0].removeprefix(FOUND)
    return float(str(before["error"])), f"{FOUND}{first}{KEPT}{error:.3f} ({source})"
