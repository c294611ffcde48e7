"""Measured training steps beside their predictions: ``mpisim validate e2e``.

- `read`: a table of measurements. `settings`: what fills in what tables do not say.
- `experiment_of`: a row as the experiment that was run (`Mapped`), or why not (`Skipped`).
- `compare`: predict a table's rows, spread over processes.
- `calibrate`: fit few constants to the steps; `written`: as a file.
- `cross_validate`: predict each row with constants that were fitted to others.
- `composition`: are steps that follow a formula composed as it says?
- `stored`: what was simulated before, from the JSON of a comparison.
- `as_json`, `render`, `markdown`, `scatter`: a comparison as figures, text, page, picture.

To read in this order: `rows`, `settings`, `clusters`, `experiments` (from a row to what was run);
`predict`, `compare`, `stored` (its simulation, the row beside it); `sets`, `figures`, `pairs`,
`report`, `plot` (errors in tables); `families`, `linear`, `mixed`, `fit`, `crossed`,
`constants_file` (constants fitted to steps). `composition` stands alone.
"""

from .compare import Compared, Comparison, compare
from .composition import composition
from .constants_file import written
from .crossed import calibrate, cross_validate
from .experiments import Mapped, Skipped, experiment_of
from .figures import as_json
from .plot import check_plot, scatter
from .report import markdown, render
from .rows import Row, read
from .settings import Settings, settings
from .stored import stored

__all__ = [
    "Compared",
    "Comparison",
    "Mapped",
    "Row",
    "Settings",
    "Skipped",
    "as_json",
    "calibrate",
    "check_plot",
    "compare",
    "composition",
    "cross_validate",
    "experiment_of",
    "markdown",
    "read",
    "render",
    "scatter",
    "settings",
    "stored",
    "written",
]
