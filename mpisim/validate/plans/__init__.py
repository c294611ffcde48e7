"""Published sweeps over plans: would a search have chosen right? ``mpisim validate plans``.

- `compare_plans`: a table of measured steps → its groups of plans, each predicted.
- `Sweeps`: the groups, and the `Noise` of measurements that were repeated.
- `ComparablePlans`: measured plans of one model on one cluster.
- `Ranking`: how well predictions put them in order.
- `reliability`: how often the faster of two plans is told, by how sure the prediction is.
- `layer_times`: what a layer takes for a micro-batch and a sequence, as measured and predicted.
- `render`, `markdown`, `as_json`: text, page, figures.

Read in this order: `groups` (rows → plans → groups), `ranking` (groups → figures), `layers` (groups
of pipelines → times of layers), `report`.
Rows, experiments and simulated steps are those of `mpisim.validate.e2e`.
"""

from .groups import ComparablePlans, Noise, Sweeps, compare_plans
from .layers import LayerTimes, layer_times
from .ranking import Ranking, reliability
from .report import as_json, markdown, render

__all__ = [
    "ComparablePlans",
    "LayerTimes",
    "Noise",
    "Ranking",
    "Sweeps",
    "as_json",
    "compare_plans",
    "layer_times",
    "markdown",
    "reliability",
    "render",
]
