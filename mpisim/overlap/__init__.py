"""Overlap slowdown: how much kernels and communications that run at the same time slow each other.

Public names: `overlap_model` builds the model of a workload, `run_with_slowdown` runs it with a
`SlowdownOutcome`, and `OverlapSummary` is what a prediction reports of it.

Read in this order:

- `passes`: the loop: run, look what overlaps, run again with slower rows.
- `model`: the timeline of a rank → how long its rows take beside each other, by `timeline`
  (progress of slowed rows, the formula), `communication_kernels` (what communications occupy) and
  `factors` (by how much each slows, parametric or learned).
- `retiming`: the times of all classes → the program of the next run.
- `summary`: texts and uncertainties of a prediction.
- `pairs`, `fit`: measured pairs of a kernel and a communication, and constants fitted to them.
"""

from .model import overlap_model
from .passes import SlowdownOutcome, run_with_slowdown
from .summary import OverlapSummary

__all__ = ["OverlapSummary", "SlowdownOutcome", "overlap_model", "run_with_slowdown"]
