"""Measured training steps beside their predictions: ``mpisim validate e2e``.

- `read`: a table of measurements. `settings`: what fills in what tables do not say.
- `experiment_of`: a row as the experiment that was run (`Mapped`), or why not (`Skipped`).
- `compare`: predict a table's rows, spread over processes.
- `calibrate`: fit few constants to the steps; `written`: as a file.
- `cross_validate`: predict each row with constants fitted to other rows.
- `composition`: are steps that follow a formula composed as it says?
- `stored`: what was simulated before, from the JSON of a comparison.
- `as_json`, `render`, `markdown`, `scatter`: a comparison as figures, text, page, picture.

Read in this order: `rows`, `settings`, `clusters`, `completion`, `experiments` (row → experiment);
`predict`, `compare` (experiment → simulated step beside the measured one); `figures`, `pairs`,
`report` (errors as figures, tables, picture); `families`, `mixed_model`, `fit`, `cross_validation`
(constants fitted to steps). `composition` is independent of these.
"""

from .compare import Compared, Comparison, compare, show
from .composition import composition
from .cross_validation import calibrate, cross_validate, written
from .experiments import Mapped, Skipped, experiment_of
from .figures import as_json
from .predict import stored
from .report import markdown, render, scatter
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
    "calibrate",
    "compare",
    "composition",
    "cross_validate",
    "experiment_of",
    "markdown",
    "read",
    "render",
    "scatter",
    "settings",
    "show",
    "stored",
    "written",
]
