"""Kernel family or variant (``kernel_variants.toml``) → its formula.

A variant has the formula of another family, its base, with constants of its own, a ratio, or both.
It is a line of the data file and no code: this module makes its formula from the base's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import Annotated, Any

import numpy as np

from mpisim.base.errors import InputError
from mpisim.base.frozen import frozen
from mpisim.base.presets import packaged
from mpisim.base.quantity import Quantity
from mpisim.base.schema import Limits, build

from ..gpu_parameters import GpuParameters
from ..operations import Kernel
from .attention import ATTENTION
from .convolution import CONVOLUTION
from .embedding import EMBEDDING
from .formula import ANY, Columns, Constant, Constants, Formula, where
from .gemm import GEMM, GROUPED_GEMM
from .memory_bound import MEMORY_BOUND, instructions_beyond
from .reductions import NORM, SOFTMAX

__all__ = [
    "FORMULAS",
    "FORMULA_OF_FAMILY",
    "VARIANTS",
    "KernelVariant",
    "formula_of",
    "stack_columns",
]

FILE = "calibration/kernel_variants.toml"

FORWARD, BACKWARD = "forward", "backward"

EFFICIENCY = "efficiency"
"""Constant of formulas of arithmetic: its rate as a share of the peak."""


@frozen
class KernelVariant:
    """A table of the data file.

    Attributes
    ----------
    base : str
        Name of the formula that it has, and whose constants serve where none were fitted to its own
        times.
    base_error : float
        Relative error that is added where the base's constants serve.
    base_source : str
        What that error depends on.
    base_itself : tuple of str
        Architectures on which the base is this very kernel, so that nothing is added.
    known_tiles : bool
        Whether its thread blocks are those of the base.
    constants : tuple of Constant
        What its formula has beside the base's.
    ratio : dict of str to Quantity
        How many times as long as by its formula it takes: by ``forward`` and ``backward``, or by
        architecture, ``any`` of those that are not named. None, if it is 1 throughout.
    keeps_floor : bool
        Whether the ratio is of the time beyond the floor: starting a kernel takes as long as ever.
    of_rate : bool
        Whether the ratio is of the rate of arithmetic alone: what memory takes stays. Such a ratio
        is by architecture.
    waits : bool
        Whether threads wait for what they read before they go on, so that their instructions are
        not hidden behind memory.
    """

    base: str
    base_error: Annotated[float, Limits(least=0)]
    base_source: str
    base_itself: tuple[str, ...] = ()
    known_tiles: bool = True
    constants: tuple[Constant, ...] = ()
    ratio: dict[str, Quantity] = field(default_factory=dict)
    keeps_floor: bool = False
    of_rate: bool = False
    waits: bool = False

    def __post_init__(self) -> None:
        if self.of_rate and (self.by_pass or not self.ratio):
            raise InputError("'of_rate' needs a ratio by architecture: formulas have one rate")
        if self.ratio and not self.by_pass and ANY not in self.ratio:
            raise InputError(f"'ratio' has no {ANY!r}, for architectures that are not named")
        if self.by_pass and set(self.ratio) != {FORWARD, BACKWARD}:
            raise InputError(f"'ratio' is by pass; it needs {FORWARD!r} and {BACKWARD!r} alone")

    @property
    def by_pass(self) -> bool:
        """Whether the ratio differs between forward and backward, not between architectures."""
        return not {FORWARD, BACKWARD}.isdisjoint(self.ratio)

    def formula(self, name: str, base: Formula) -> Formula:
        """Return the variant's formula.

        Parameters
        ----------
        name : str
            Of the variant: ``"attention_cudnn"``.
        base : Formula
        """
        formula = replace(
            base,
            name=name,
            constants=(*base.constants, *self.constants),
            stretch=base.stretch if self.known_tiles else None,
        )
        return self._times_ratio(formula) if self.ratio else formula

    def _times_ratio(self, base: Formula) -> Formula:
        ratios = {key: ratio.si for key, ratio in self.ratio.items()}

        def ratio_on(gpu: GpuParameters) -> float:
            return ratios.get(gpu.family, ratios[ANY])

        def ratio_of(columns: Columns, gpu: GpuParameters) -> Any:
            if self.by_pass:
                return where(columns["backward"] != 0, ratios[BACKWARD], ratios[FORWARD])
            return ratio_on(gpu)

        def columns(kernel: Any) -> dict[str, float | int | str]:
            found = base.columns(kernel)
            return {**found, "backward": int(kernel.backward)} if self.by_pass else found

        def slowed(gpu: GpuParameters, constants: Constants) -> Constants:
            return {**constants, EFFICIENCY: constants[EFFICIENCY] / ratio_on(gpu)}

        if self.of_rate:
            return replace(
                base,
                seconds=lambda columns, gpu, own: base.seconds(columns, gpu, slowed(gpu, own)),
                shares=lambda columns, gpu, own: base.shares(columns, gpu, slowed(gpu, own)),
                fitted=None,
            )

        def seconds(columns: Columns, gpu: GpuParameters, constants: Constants) -> Any:
            kept = constants["floor"] if self.keeps_floor else 0.0
            return kept + ratio_of(columns, gpu) * (base.seconds(columns, gpu, constants) - kept)

        def shares(columns: Columns, gpu: GpuParameters, constants: Constants) -> dict[str, Any]:
            ratio = ratio_of(columns, gpu)
            terms = base.shares(columns, gpu, constants)
            return {
                name: term if self.keeps_floor and name == "floor" else ratio * term
                for name, term in terms.items()
            }

        formula = replace(base, columns=columns, seconds=seconds, shares=shares, fitted=None)
        return self._beside_instructions(formula) if self.base == MEMORY_BOUND.name else formula

    def _beside_instructions(self, stretched: Formula) -> Formula:
        """Formula of memory time → the same with instruction time, not scaled by the ratio."""

        def bare(columns: Columns) -> Columns:
            return {**columns, "instructions": 0 * columns["instructions"]}

        def hidden(memory: Any) -> Any:
            return 0.0 * memory if self.waits else memory

        def seconds(columns: Columns, gpu: GpuParameters, constants: Constants) -> Any:
            memory = stretched.seconds(bare(columns), gpu, constants)
            return memory + _instructions(columns, gpu, hidden(memory))

        def shares(columns: Columns, gpu: GpuParameters, constants: Constants) -> dict[str, Any]:
            terms = stretched.shares(bare(columns), gpu, constants)
            memory = stretched.seconds(bare(columns), gpu, constants)
            more = _instructions(columns, gpu, hidden(memory))
            return {**terms, "instructions": terms["instructions"] + more}

        return replace(stretched, seconds=seconds, shares=shares)


def _instructions(columns: Columns, gpu: GpuParameters, hidden: Any) -> Any:
    """Return the time of `Elementwise.instructions` beyond that of memory, in seconds."""
    return instructions_beyond({"instructions": columns["instructions"]}, gpu, hidden)


def _packaged_variants() -> dict[str, KernelVariant]:
    """Return the variants of the data file by qualified family: ``"gemm_split"``."""
    return {
        f"{family}_{variant}": build(KernelVariant, values, FILE, f"{family}.{variant}")
        for family, variants in packaged(FILE).items()
        for variant, values in variants.items()
    }


VARIANTS = _packaged_variants()

FORMULAS: dict[str, Formula] = {
    formula.name: formula
    for formula in (
        GEMM,
        GROUPED_GEMM,
        ATTENTION,
        CONVOLUTION,
        MEMORY_BOUND,
        SOFTMAX,
        NORM,
        EMBEDDING,
    )
}
"""Formulas by name, as the tables of a calibration name them. A base comes before its variants."""

for _name, _variant in VARIANTS.items():
    FORMULAS[_name] = _variant.formula(_name, FORMULAS[_variant.base])

FORMULA_OF_FAMILY: dict[str, str] = {
    "gemm": "gemm",
    "grouped_gemm": "grouped_gemm",
    "attention": "attention",
    "convolution": "convolution",
    "elementwise": "memory_bound",
    "copy": "memory_bound",
    "optimizer": "memory_bound",
    "softmax": "softmax",
    "norm": "norm",
    "cross_entropy": "softmax",
    "embedding": "embedding",
    **{name: name for name in VARIANTS},
}
"""The name of the formula that serves each `Kernel.qualified_family`."""


def formula_of(qualified_family: str) -> Formula:
    """Return the formula that serves a `Kernel.qualified_family`.

    Raises
    ------
    InputError
        If none does.
    """
    name = FORMULA_OF_FAMILY.get(qualified_family)
    if name is None:
        raise InputError(
            f"no analytical model of the family {qualified_family!r}; "
            f"there are {', '.join(FORMULA_OF_FAMILY)}"
        )
    return FORMULAS[name]


def stack_columns(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """Return the columns of kernels of one family and one format, an array each.

    Parameters
    ----------
    kernels : sequence of Kernel
        At least one.

    Returns
    -------
    dict
        As `Columns`.
    """
    formula = formula_of(kernels[0].qualified_family)
    rows = [formula.columns(kernel) for kernel in kernels]
    found: dict[str, Any] = {
        name: np.array([row[name] for row in rows]) for name in rows[0] if name != "dtype"
    }
    if "dtype" in rows[0]:
        (found["dtype"],) = {row["dtype"] for row in rows}
    return found
