"""Experiments: which model, on which cluster, by which parallel plan.

An experiment is one TOML file with the tables ``[model]``, ``[plan]`` and ``[cluster]``, and where
wanted ``[kernels]``, ``[network]``, ``[variation]``, ``[calibration]`` and ``[run]``, read into
frozen dataclasses whose fields are the keys. ``mpisim new`` writes one with every key explained.

- `load`, `read`: from a file or a text; `defaulted`: which keys it leaves to their defaults;
  `assigned`: changes of a command line as a table.
- `Experiment` with `Model` (`Transformer`, `Cnn` or `Dlrm`), `Plan`, `ClusterChoice`,
  `KernelChoice`, `NetworkChoice`, `OverlapChoice`, `VariationChoice`, `CalibrationChoice`,
  `RunChoice`.
"""

from .experiment import (
    CalibrationChoice,
    ClusterChoice,
    Experiment,
    KernelChoice,
    NetworkChoice,
    RunChoice,
)
from .load import DEFAULT, assigned, defaulted, load, read
from .models import FAMILIES, USUAL_LENGTH, Cnn, Dlrm, Model, Transformer
from .overlap import OverlapChoice
from .plan import Plan
from .variation import VariationChoice

__all__ = [
    "DEFAULT",
    "FAMILIES",
    "USUAL_LENGTH",
    "CalibrationChoice",
    "ClusterChoice",
    "Cnn",
    "Dlrm",
    "Experiment",
    "KernelChoice",
    "Model",
    "NetworkChoice",
    "OverlapChoice",
    "Plan",
    "RunChoice",
    "Transformer",
    "VariationChoice",
    "assigned",
    "defaulted",
    "load",
    "read",
]
