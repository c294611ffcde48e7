"""Measured training steps beside their predictions: ``mpisim validate e2e``.

- `read`: a table of measurements. `settings`: what fills in what tables do not say.
- `experiment_of`: a row as the experiment that was run (`Mapped`), or why not (`Skipped`).
- `compare`: predict a table's rows, spread over processes.
- `as_json`, `render`, `scatter`: a comparison as figures, as text, as a picture.
"""

from .compare import Compared, Comparison, compare
from .experiments import Mapped, Skipped, experiment_of
from .figures import as_json
from .plot import check_plot, scatter
from .report import render
from .rows import Row, read
from .settings import Settings, settings

__all__ = [
    "Compared",
    "Comparison",
    "Mapped",
    "Row",
    "Settings",
    "Skipped",
    "as_json",
    "check_plot",
    "compare",
    "experiment_of",
    "read",
    "render",
    "scatter",
    "settings",
]
