"""Validation: predictions beside measurements, in one layout for every kind.

- `Case`, `Validation`: measured and predicted values, their errors, and the JSON layout.
- `validate_traces`: replay recorded traces, step by step.
- `cross_steps`: predict a step from the one before.
- `perturb_traces`: does a replay move as an honest one must when something is changed?
"""

from .cases import Case, Validation
from .cross_step import CrossStep, cross_steps
from .perturb import Perturbation, perturb_traces
from .traces import TraceResult, validate_traces

__all__ = [
    "Case",
    "CrossStep",
    "Perturbation",
    "TraceResult",
    "Validation",
    "cross_steps",
    "perturb_traces",
    "validate_traces",
]
