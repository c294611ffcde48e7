"""Files of measured and predicted training steps, as several scripts read them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

__all__ = ["column_of", "compared_cases"]


def compared_cases(path: Path) -> list[dict[str, Any]]:
    """File of ``mpisim validate e2e --json`` → its cases, one a row of the table."""
    return list(json.loads(path.read_text(encoding="utf-8"))["cases"])


def column_of(path: Path, name: str) -> dict[str, str]:
    """Table of measured steps (CSV) → the values of a column by ``id``.

    Parameters
    ----------
    path : Path
    name : str
        Of the column.
    """
    with path.open(newline="", encoding="utf-8") as file:
        return {row["id"]: row[name] for row in csv.DictReader(file)}
