"""Workload generators: models and parallel plans in, programs out.

- `lay_out`: an `Experiment` on a number of GPUs, as a `Layout`: grid of ranks, pipeline, networks.
- `training_step`: one step of a layout as a program, with what its durations rest on (`Workload`).
"""

from .layout import Layout, lay_out
from .step import Workload, training_step

__all__ = ["Layout", "Workload", "lay_out", "training_step"]
