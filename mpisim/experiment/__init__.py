"""Experiments: which model, on which cluster, by which parallel plan.

An experiment is one TOML file with the tables ``[model]``, ``[plan]`` and ``[cluster]``, and where
wanted ``[framework]``, ``[scale]``, ``[kernels]``, ``[network]``, ``[overlap]``, ``[variation]``,
``[calibration]``, ``[prices]`` and ``[run]``, read into frozen dataclasses whose fields are the
keys. ``mpisim new --all`` writes one with every key explained. Where the work stands in a program
file, ``[workload]`` takes the place of ``[model]`` and ``[plan]``.

Read in this order.

``transformer``, ``models``, ``plan_options``, ``framework``, ``plan``, ``choices``
    The tables as dataclasses: ``[model]``, of transformers and of all families; sub-tables of
    ``[plan]``; ``[framework]``; ``[plan]``; all others.
``plan_keys``
    Tables as people write them: a value for a sub-table, names of earlier versions.
``experiment``, ``program_experiment``, ``traced``
    An experiment of a model, with the figures published of it; one of a program file; of a trace.
``job_choice``
    The job it is a step of, for ``mpisim job`` alone.
``model_presets``, ``model_counts``, ``likely_models``
    Models by name; their parameters and FLOPs; models that are not described in full.
``huggingface``, ``huggingface_config``, ``_dense``, ``_encoders``, ``_mixed``, ``_unknown``
    ``config.json`` → keys of ``[model]``: by its type, its checked values, dense models, those with
    experts or recurrences, types that are not known.
``profiles``, ``profile_conditions``
    What frameworks, and common practice, fill in; when an entry holds.
``tables``, ``model_table``
    The tables' names, and which has a key; keys of ``[model]`` → the model.
``changes``, ``load``
    ``--set`` → tables with changed keys; TOML → experiment.
``serialization``
    Experiment → text that stands alone, kept in program files, and back.
"""

from .choices import (
    CalibrationChoice,
    ClusterChoice,
    DataChoice,
    KernelChoice,
    NetworkChoice,
    OverlapChoice,
    PriceChoice,
    RunChoice,
    ScaleChoice,
    VariationChoice,
)
from .experiment import Experiment
from .framework import FrameworkOptions
from .load import DEFAULT, defaulted, load, load_any, read
from .models import FAMILIES, USUAL_LENGTH, Cnn, Dlrm, Model, Transformer
from .plan import Plan, keys_of, with_keys
from .plan_options import (
    OffloadOptions,
    OverlapOptions,
    PipelineOptions,
    PrecisionOptions,
    RecomputeOptions,
    TableOptions,
)
from .program_experiment import ProgramChoices, ProgramExperiment
from .serialization import deserialize, serialize

__all__ = [
    "DEFAULT",
    "FAMILIES",
    "USUAL_LENGTH",
    "CalibrationChoice",
    "ClusterChoice",
    "Cnn",
    "DataChoice",
    "Dlrm",
    "Experiment",
    "FrameworkOptions",
    "KernelChoice",
    "Model",
    "NetworkChoice",
    "OffloadOptions",
    "OverlapChoice",
    "OverlapOptions",
    "PipelineOptions",
    "Plan",
    "PrecisionOptions",
    "PriceChoice",
    "ProgramChoices",
    "ProgramExperiment",
    "RecomputeOptions",
    "RunChoice",
    "ScaleChoice",
    "TableOptions",
    "Transformer",
    "VariationChoice",
    "defaulted",
    "deserialize",
    "keys_of",
    "load",
    "load_any",
    "read",
    "serialize",
    "with_keys",
]
