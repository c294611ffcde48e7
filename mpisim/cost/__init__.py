"""Hardware and times of a step → power, energy and money.

Read in this order:

:mod:`.power`
    Watts of GPUs by what runs on them, of nodes, of the network (``data/power.toml``).
:mod:`.prices`
    Dollars of an hour of a cluster, rented or bought (``data/prices.toml``, ``[prices]``).
:mod:`.step`
    Hardware and the times of a step → `StepCost`: energy, power, dollars, each with its error.

``docs/cost.md`` is for users.
"""

from .power import ClusterPower, GpuPower, cluster_power, gpu_power
from .prices import Prices, read_prices
from .step import Busy, StepCost, busy_of, step_cost

__all__ = [
    "Busy",
    "ClusterPower",
    "GpuPower",
    "Prices",
    "StepCost",
    "busy_of",
    "cluster_power",
    "gpu_power",
    "read_prices",
    "step_cost",
]
