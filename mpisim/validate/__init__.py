"""Validation: predictions beside measurements, in one layout for every kind.

- `Case`, `Validation`: measured and predicted values, their errors, and the JSON layout.
- `validate_traces`: replay recorded traces, step by step.
- `perturb_traces`: does a replay move as an honest one must when something is changed?
"""

from .cases import Case, Validation
from .perturb import Perturbation, perturb_traces
from .traces import TraceResult, validate_traces

__all__ = [
    "Case",
    "Perturbation",
    "TraceResult",
    "Validation",
    "perturb_traces",
    "validate_traces",
]
