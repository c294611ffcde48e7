"""Outcomes of simulations kept in the JSON of ``mpisim validate e2e``, to be used again.

Fitting constants and writing tables take seconds, simulating every row minutes. Each row's outcome
is kept with a digest of its experiment: a row whose experiment has changed since, by rules, presets
or ``--set``, is simulated again, as is one that was not there. What the digest cannot tell is that
mpisim itself predicts otherwise than the version which wrote the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...base.errors import InputError
from ...base.files import read_text
from .clusters import nameless
from .experiments import Mapped
from .predict import Outcome

__all__ = ["digest", "kept", "stored"]

NUMBERS = ("seconds", "before_optimizer", "inputs")


def digest(mapped: Mapped, every: bool) -> str:
    """Return what tells an experiment from others.

    Parameters
    ----------
    mapped : Mapped
    every : bool
        Whether every micro-batch is simulated.
    """
    text = f"{every} {replace(mapped.experiment, source='', title='')!r}"
    return hashlib.sha256(nameless(text).encode()).hexdigest()[:20]


def kept(mapped: Mapped, outcome: Outcome, every: bool) -> dict[str, Any]:
    """Return an outcome as a table of JSON."""
    numbers = {name: getattr(outcome, name) for name in NUMBERS}
    return {
        "experiment": digest(mapped, every),
        **numbers,
        "fits": outcome.fits,
        "lengths": dict(outcome.lengths),
    }


def stored(path: str | Path) -> dict[str, Outcome]:
    """Read the outcomes of a file, by digest.

    Raises
    ------
    InputError
        If it cannot be read, or is not a file of ``mpisim validate e2e --json`` without constants
        fitted to steps.
    """
    try:
        table = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    try:
        cases = [case["outcome"] for case in table["cases"]]
        return {str(case["experiment"]): _outcome(case) for case in cases}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{path}: has no outcomes of simulations; it must be written by 'mpisim validate e2e "
            "--json' without --calibration"
        ) from error


def _outcome(case: Mapping[str, Any]) -> Outcome:
    seconds, before_optimizer, inputs = (float(case[name]) for name in NUMBERS)
    lengths = {str(name): float(length) for name, length in case["lengths"].items()}
    return Outcome(seconds, before_optimizer, inputs, fits=bool(case["fits"]), lengths=lengths)
