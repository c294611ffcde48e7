"""Published figures of memory → mean errors of the memory model as JSON.

    python tests/memory_errors.py FILE

For ``run_scripts/headline_errors.py``: ``measured`` and ``formula`` (mean of
|predicted / published - 1|), ``rows``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from test_memory_validation import ROWS, predicted


def errors() -> dict[str, float]:
    """The rows of ``data/validation/memory.csv`` → mean errors by kind, and how many rows."""
    found: dict[str, list[float]] = {}
    for row in ROWS:
        error = abs(predicted(row) / float(row["value"]) - 1)
        found.setdefault(row["kind"], []).append(error)
    means = {kind: sum(each) / len(each) for kind, each in found.items()}
    return means | {"rows": sum(map(len, found.values()))}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(errors()))
