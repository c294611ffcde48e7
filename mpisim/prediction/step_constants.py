"""Step constants: factors of kernel and communication times, fitted to measured steps.

``mpisim calibrate e2e`` writes them to a TOML file, which an experiment names by
``[calibration] file``. Every constant multiplies times, so 1 leaves the model unchanged; only the
overhead of a step is a time:

    products, attention, memory    kernels of a kind of GPU; attention also of a framework
    inside, across                 communications within nodes and between them, by platform; across
                                   also of a framework
    host                           CPU time of launches, by framework
    overhead                       of a step besides its kernels and launches, by framework

Where both a GPU (or platform) and a framework have a constant, times are multiplied by both:
frameworks differ in their attention kernels, and in how much communication they hide. A framework
without fitted steps has the constant of the GPU or platform alone.

The file also holds the model error, the error of predicted steps that the fit did not see; it comes
on top of the error bars of the model's numbers (:mod:`mpisim.prediction.uncertainty`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from pathlib import Path

from ..base.errors import InputError
from ..base.files import read_text
from ..base.frozen import frozen
from ..base.presets import packaged
from ..base.quantity import Quantity
from ..base.schema import build, parse

__all__ = [
    "MODEL_CLASSES",
    "MULTIPLIERS",
    "OVERHEAD",
    "AppliedConstants",
    "ModelError",
    "StepConstants",
    "chip",
    "constant_name",
    "framework_key",
    "gpu_key",
    "is_framework_key",
    "model_class",
    "packaged_constants",
    "parse_constant_name",
]

FILE = "calibration/e2e.toml"

MULTIPLIERS = ("products", "attention", "memory", "inside", "across", "host")
"""Kinds of constants that multiply times."""

FRAMEWORK_PLACES = {"attention": "gpu", "across": "network"}
"""Kinds of which a framework has a constant too, for any GPU or any network."""

OVERHEAD = "overhead"

ONE = Quantity(1, "1", 0, "not fitted")


MODEL_CLASSES = ("dense", "experts", "recommendation", "other")
"""Classes of models, whose steps are not equally well predicted: transformers without and with
experts, recommendation models, and all others (networks for images)."""


@frozen
class ModelError:
    """Model error: how far predicted steps are off beyond the error bars of their inputs.

    Each is 1 with its error bar, by class of model.

    Attributes
    ----------
    plain : dict of str to Quantity
        Without constants fitted to steps.
    known : dict of str to Quantity
        With them, where steps of the same framework and the same kind of GPU were fitted.
    unknown : dict of str to Quantity
        With them, where one of the two, or both, are new.
    """

    plain: dict[str, Quantity]
    known: dict[str, Quantity]
    unknown: dict[str, Quantity]

    def __post_init__(self) -> None:
        for name, table in vars(self).items():
            for each in MODEL_CLASSES:
                if each not in table:
                    raise InputError(f"model_error.{name} lacks {each!r}; it needs {MODEL_CLASSES}")


@frozen
class StepConstants:
    """All step constants, by kind, then by GPU, platform or framework.

    Attributes
    ----------
    products : dict of str to Quantity
        Matrix products and convolutions; by kind of GPU and format (``"h100 bf16"``).
    attention : dict of str to Quantity
        Fused attention; by kind of GPU (`chip`), and of a framework (``"nemo on any gpu"``,
        `framework_key`).
    memory : dict of str to Quantity
        All other kernels; by kind of GPU.
    inside, across : dict of str to Quantity
        Communications within a node, and among several; by platform, the latter also of a framework
        (``"nemo on any network"``).
    host : dict of str to Quantity
        CPU time of launches; by framework.
    overhead : dict of str to Quantity
        Time of a step before its first launch; by framework.
    model_error : ModelError, optional
    """

    products: dict[str, Quantity] = field(default_factory=dict)
    attention: dict[str, Quantity] = field(default_factory=dict)
    memory: dict[str, Quantity] = field(default_factory=dict)
    inside: dict[str, Quantity] = field(default_factory=dict)
    across: dict[str, Quantity] = field(default_factory=dict)
    host: dict[str, Quantity] = field(default_factory=dict)
    overhead: dict[str, Quantity] = field(default_factory=dict)
    model_error: ModelError | None = None

    def __post_init__(self) -> None:
        for kind in MULTIPLIERS:
            for key, number in getattr(self, kind).items():
                if number.unit != "1" or not number.value:
                    raise InputError(
                        f"{kind}.{key!r} is {number.value} {number.unit}; it must be "
                        "a number above 0 with the unit '1'"
                    )
        for key, number in self.overhead.items():
            if number.unit not in ("s", "ms", "us"):
                raise InputError(f"overhead.{key!r} has the unit {number.unit!r}; it is a time")

    @classmethod
    def read(cls, path: str | Path) -> StepConstants:
        """Read a file that ``mpisim calibrate e2e`` has written.

        Raises
        ------
        InputError
            If it cannot be read, or is not such a file.
        """
        return build(cls, parse(read_text(path), str(path)), str(path))

    def multiplier(self, kind: str, key: str) -> Quantity:
        """Return a multiplier of times; 1 where none was fitted.

        Parameters
        ----------
        kind : str
            One of `MULTIPLIERS`.
        key : str
            What the constant belongs to: a GPU, a platform or a framework.
        """
        table: Mapping[str, Quantity] = getattr(self, kind)
        return table.get(key, ONE)

    def for_model(self, model: object) -> StepConstants:
        """Return the constants for an experiment's model: none if it is a mixture of experts.

        Steps of such models are off for other causes than the speeds of kernels and networks:
        constants fitted to other models make their predictions worse.
        """
        if model_class(model) != "experts":
            return self
        return StepConstants(model_error=self.model_error)

    def fitted_to(self, framework: str | None, gpu: str) -> bool:
        """Whether steps of a framework and of a kind of GPU were fitted.

        Parameters
        ----------
        framework : str or None
            None has never been fitted.
        gpu : str
            Kind of GPU (`gpu_key`).
        """
        return framework in self.host and gpu in self.memory


@cache
def packaged_constants() -> StepConstants:
    """Return the constants that come with mpisim."""
    return build(StepConstants, packaged(FILE), FILE)


@frozen
class AppliedConstants:
    """The constants that apply to one kind of GPU of an experiment.

    Attributes
    ----------
    constants : StepConstants
    gpu : str
        Kind of GPU (`gpu_key`).
    platform : str
        Of the network.
    framework : str or None
    """

    constants: StepConstants
    gpu: str
    platform: str
    framework: str | None

    def number(self, kind: str, key: str | None) -> tuple[str, Quantity]:
        """Return the name of a constant and its value, times that of the framework.

        Parameters
        ----------
        kind : str
            One of `MULTIPLIERS`.
        key : str or None
            What the constant belongs to; None is any framework.

        Returns
        -------
        name : str
            As of `constant_name`.
        value : Quantity
            Without unit, 1 where none was fitted; the errors of both are added in quadrature.
        """
        key = key or "any framework"
        name, number = constant_name(kind, key), self.constants.multiplier(kind, key)
        other_key = None if self.framework is None else framework_key(kind, self.framework)
        if other_key is None or other_key not in getattr(self.constants, kind):
            return name, number
        other = self.constants.multiplier(kind, other_key)
        error = math.hypot(number.error, other.error)
        source = f"{number.source}; {other_key}: {other.source}"
        return name, Quantity(number.value * other.value, "1", error, source)

    def covers(self, kind: str, key: str | None) -> bool:
        """Whether a constant was fitted to steps of this very GPU, platform or (host) framework.

        What it says of times it then says with all that they depend on: error bars of rates and
        formulas, from before any step was looked at, are not added to its own.

        Parameters
        ----------
        kind : str
            One of `MULTIPLIERS`.
        key : str or None
            What the constant belongs to; None is covered by none.
        """
        return key in getattr(self.constants, kind)

    @property
    def fitted(self) -> bool:
        """Whether steps of this framework and kind of GPU were fitted."""
        return self.constants.fitted_to(self.framework, self.gpu)

    @property
    def host(self) -> str:
        """Name of the constant that launches depend on."""
        return self.number("host", self.framework)[0]

    @property
    def overhead(self) -> tuple[str, float]:
        """Name and seconds of the overhead of a step."""
        key = self.framework or "any framework"
        found = self.constants.overhead.get(key)
        return constant_name(OVERHEAD, key), 0.0 if found is None else found.si


def constant_name(kind: str, key: str) -> str:
    """Kind and key of a constant → its name among all numbers that a step depends on.

    Parameters
    ----------
    kind : str
        One of `MULTIPLIERS`, or `OVERHEAD`.
    key : str
        What the constant belongs to: a GPU, a platform or a framework.
    """
    return f"{kind} of {key}"


def parse_constant_name(name: str) -> tuple[str, str] | None:
    """Name of a number → kind and key of the constant; None for any other number."""
    kind, _, key = name.partition(" of ")
    return (kind, key) if key and kind in (*MULTIPLIERS, OVERHEAD) else None


def framework_key(kind: str, framework: str) -> str | None:
    """Return the key of a framework's constant, which multiplies that of a GPU or a platform.

    Parameters
    ----------
    kind : str
        One of `MULTIPLIERS`; None is returned where frameworks have no such constant.
    framework : str

    Examples
    --------
    >>> framework_key("attention", "nemo"), framework_key("across", "nemo")
    ('nemo on any gpu', 'nemo on any network')
    >>> framework_key("products", "nemo")
    """
    place = FRAMEWORK_PLACES.get(kind)
    return None if place is None else f"{framework} on any {place}"


def is_framework_key(key: str) -> bool:
    """Whether a key is one of `framework_key`."""
    return " on " in key


def model_class(model: object) -> str:
    """Return the class of an experiment's model, one of `MODEL_CLASSES`.

    Hybrids count among models with experts: of their recurrences no kernel was measured, and their
    steps are as far off (docs/workloads.md).
    """
    from ..experiment import Dlrm, Transformer

    if isinstance(model, Dlrm):
        return "recommendation"
    if not isinstance(model, Transformer):
        return "other"
    return "experts" if model.experts or model.pattern else "dense"


def gpu_key(gpu: str, model: object) -> str:
    """GPU and model → key of kernel constants: the kind of GPU, with the class of other models.

    ``h100``, ``h100-other``, ``h100-recommendation``. What kernels of transformers show of their
    libraries says nothing about convolutions, tables and the passes over memory between them.

    Parameters
    ----------
    gpu : str
        Name of a GPU.
    model : object
        An experiment's model.
    """
    kind = model_class(model)
    return f"{chip(gpu)}-{kind}" if kind in ("recommendation", "other") else chip(gpu)


def chip(gpu: str) -> str:
    """Name of a GPU → its kind, whatever its memory size and board.

    Examples
    --------
    >>> chip("a100-sxm-40gb"), chip("H100 PCIe"), chip("titan-xp")
    ('a100', 'h100', 'titan-xp')
    """
    name = Path(gpu).stem.casefold() if gpu.endswith(".toml") else gpu.casefold()
    return next((part for part in re.split("[- ]", name) if any(map(str.isdigit, part))), name)
