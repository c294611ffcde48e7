"""Experiments: which model, on which cluster, by which parallel plan.

An experiment is one TOML file with the tables ``[model]``, ``[plan]`` and ``[cluster]``, and where
wanted ``[kernels]``, ``[network]``, ``[overlap]``, ``[variation]``, ``[calibration]`` and
``[run]``, read into frozen dataclasses whose fields are the keys. ``mpisim new`` writes one with
every key explained. Where the work stands in a program file, ``[workload]`` takes the place of
``[model]`` and ``[plan]``.

- `load`, `read`: from a file or a text; `load_any`: also one whose work is a program file, a
  `ProgramExperiment` with the choices of `ProgramChoices`; `kept`, `restored`: as a text that
  stands alone, and back.
- `defaulted`: which keys it leaves to their defaults.
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
from .kept import kept, restored
from .load import DEFAULT, defaulted, load, load_any, read
from .models import FAMILIES, USUAL_LENGTH, Cnn, Dlrm, Model, Transformer
from .of_program import ProgramChoices, ProgramExperiment
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
    "ProgramChoices",
    "ProgramExperiment",
    "RunChoice",
    "Transformer",
    "VariationChoice",
    "defaulted",
    "kept",
    "load",
    "load_any",
    "read",
    "restored",
]
