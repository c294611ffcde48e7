"""GPU, formula, number format → fitted constants and their error.

A table fitted to the GPU itself is best. Without one the constants of others serve, with errors
added in squares; `look_up` says in which order. The added errors stand in
``data/calibration/kernel_numbers.toml`` and, of variants, in ``kernel_variants.toml``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mpisim.base.frozen import frozen
from mpisim.base.presets import packaged

from ..gpu import FILE as GPU_PRESETS
from ..gpu_parameters import GpuParameters, gpu_parameters
from ..numbers import number
from .calibration import HELD_OUT_GPUS, FittedConstants, KernelCalibration
from .families import FORMULAS, VARIANTS
from .formula import ANY

__all__ = ["RELATED_ARCHITECTURES", "CalibrationLookup", "look_up", "unseen_chip_error"]

FORMAT_FALLBACKS: dict[str, tuple[str, ...]] = {
    "fp16": ("fp16", "bf16", "fp8", "tf32", "fp32"),
    "bf16": ("bf16", "fp16", "fp8", "tf32", "fp32"),
    "tf32": ("tf32", "bf16", "fp16", "fp8", "fp32"),
    "fp8": ("fp8", "fp16", "bf16", "tf32", "fp32"),
    "nvfp4": ("nvfp4", "fp8", "fp16", "bf16", "tf32", "fp32"),
    "fp32": ("fp32", "tf32", "fp16", "bf16", "fp8"),
    ANY: (ANY,),
}
"""Formats whose constants may serve a format, best first."""

SAME_UNITS = frozenset(("fp16", "bf16"))
"""Formats that matrix units work in at the same rate."""

RELATED_ARCHITECTURES: dict[str, tuple[str, ...]] = {
    "turing": ("volta", "ampere"),
    "volta": ("ampere", "hopper"),
    "ampere": ("hopper", "volta"),
    "ada": ("ampere", "hopper"),
    "hopper": ("ampere", "volta"),
    "blackwell": ("hopper", "ampere", "volta"),
    "blackwell-rtx": ("ada", "ampere", "hopper"),
    "cdna1": ("cdna2", "cdna3"),
    "cdna2": ("cdna1", "cdna3"),
    "cdna3": ("cdna2", "cdna1"),
    "cdna4": ("cdna3", "cdna2", "cdna1"),
}
"""Architectures whose constants may serve one that was not measured, best first. Those fitted to a
V100 alone predict an A100's elementwise kernels and layer norms to 3 and 7 %, and the reverse holds
as well; those fitted to all of Pascal, Turing and Volta are 15 to 20 % off. Softmax carries over
less well: 14 % from V100 to A100, 28 % back, 16 and 36 % from all others (NeuSight's rows)."""

OTHER_FORMAT_ERROR = number("other_format_error")
OTHER_GPU_ERROR = number("other_gpu_error")
UNRELATED_ARCHITECTURE_ERROR = number("unrelated_architecture_error")
TEXTBOOK_ERROR = number("textbook_error")
UNSEEN_POWER_ERROR = number("unseen_power_error")
OTHER_GENERATION_ERROR = number("other_generation_error")
MISSING_FIGURE_ERROR = number("missing_figure_error")

SUBSTITUTE_FORMULAS: dict[str, tuple[str, float]] = {
    "convolution": ("gemm", number("convolution_from_gemm_error")),
    "grouped_gemm": ("gemm", number("grouped_gemm_from_gemm_error")),
}
"""Formulas that have the constants of another formula where that alone was measured: in a format,
or in it on GPUs of the architecture and of related ones; and the relative error this adds. Implicit
products of a convolution run on the units of other products, on CDNA on matrix units in fp32, too.
"""

AVERAGING_FORMULAS = ("gemm",)
"""Formulas whose kernels were measured as those of whole layers, so that what of their errors
averages out is known (``shared_kernel_error`` in ``kernel_numbers.toml``).
Their variants have it from them."""


@frozen
class CalibrationLookup:
    """Constants for a formula on a GPU in a format, with their error and source.

    Attributes
    ----------
    constants : mapping of str to float
    table : FittedConstants, optional
        None: textbook values.
    name : str
        Of the table, ``"gemm.ampere.fp16"``, or ``"textbook"``.
    borrowed : bool
        Whether the GPU itself, or the format, was not measured.
    added : float
        Relative error to add, in squares, to the table's.
    unrelated : bool
        Whether no GPU of the table has the architecture or a related one.
    chips : FittedConstants, optional
        Of another board's table the one of the architecture whose errors are of chips left out: a
        board of the same chip is off by no more, and by no less than the table's own rows.
    base : str
        Formula whose constants these are, where that is another one.
    carried : float
        Of `added`, what such a formula is off by beside the base: that it has for itself.
    together : bool
        Whether unlike kernels are off together, as those of no layers were measured.
    """

    constants: Mapping[str, float]
    table: FittedConstants | None
    name: str
    borrowed: bool
    added: float = 0.0
    unrelated: bool = False
    chips: FittedConstants | None = None
    base: str = ""
    carried: float = 0.0
    together: bool = False

    @property
    def launch(self) -> float:
        """CPU time in the measured times, in seconds."""
        return self.table.launch if self.table else 0.0

    @property
    def growth(self) -> float:
        """Growth of `launch` in the course of the author's run, in seconds."""
        return self.table.growth if self.table else 0.0

    def error(self, seconds: float) -> float:
        """Return the relative standard error of a predicted duration."""
        judged = self._judged_by(seconds)
        return math.hypot(judged.error(seconds) if judged else 0.0, self.added)

    def _judged_by(self, seconds: float) -> FittedConstants | None:
        """Return the table whose errors a duration has."""
        tables = [each for each in (self.table, self.chips) if each]
        return max(tables, key=lambda each: each.error(seconds), default=None)

    def own_share(self, seconds: float) -> float:
        """Seconds of a kernel → share of its error's variance that no other kernel shares.

        What is added is off together in all.
        """
        judged, error = self._judged_by(seconds), self.error(seconds)
        if judged is None or not error or self.together:
            return 0.0
        return judged.own_share(seconds) * (judged.error(seconds) / error) ** 2

    @property
    def largest_error(self) -> float:
        """The relative standard error of the decade of durations that is predicted worst."""
        tables = [each.largest_error for each in (self.table, self.chips) if each]
        return math.hypot(max(tables, default=0.0), self.added)

    @property
    def source(self) -> str:
        """Source of the constants, in a line."""
        if self.table is None:
            return "textbook values: no kernel of the family was measured"
        borrowed = ", borrowed" if self.borrowed else ""
        return f"[{self.name}]{borrowed}: fit to {self.table.rows:,} kernels, {self.table.source}"


def look_up(
    calibration: KernelCalibration, formula: str, gpu: GpuParameters, dtype: str
) -> CalibrationLookup:
    """Return the constants for a formula on a GPU in a format.

    The GPU's own come first, then those of another board with its chip (with its errors where only
    links differ, as those of an H800 and an H100; else with those of chips left out), then its
    architecture's and those of related ones, then those of all GPUs; and the same again for the
    formats that may serve. A variant that has no table down to its architecture's has its base's
    constants, and a formula of `SUBSTITUTE_FORMULAS` those of the substitute where it has no table
    in the format, or none of the architecture and related ones, for which the substitute has one.

    Parameters
    ----------
    calibration : KernelCalibration
    formula : str
        A name of `families.FORMULAS`.
    gpu : GpuParameters
    dtype : str
        A number format, or ``"any"`` for kernels that have none.
    """
    variant = VARIANTS.get(formula)
    if variant is not None and not _measured_near(calibration, formula, gpu, dtype):
        error = 0.0 if gpu.family in variant.base_itself else variant.base_error
        return _borrowed(calibration, variant.base, error, gpu, dtype)
    near = (gpu.family, *RELATED_ARCHITECTURES.get(gpu.family, ()))
    substitute = SUBSTITUTE_FORMULAS.get(formula)
    if substitute is not None and (
        not _measured_anywhere(calibration, formula, dtype)
        or _related(calibration, formula, near, dtype)
        < _related(calibration, substitute[0], near, dtype)
    ):
        return replace(_borrowed(calibration, *substitute, gpu, dtype), together=True)
    for other in FORMAT_FALLBACKS[dtype]:
        boards = _boards_with_chip(calibration, formula, gpu, other)
        for owner in (gpu.name, *boards, *near, ANY):
            table = calibration.tables.get((formula, owner, other))
            if table is None:
                continue
            same_format = other == dtype or {other, dtype} <= SAME_UNITS
            of_chip = owner in (gpu.name, *boards)
            of_this_board = owner == gpu.name or (
                owner in boards and gpu_parameters(owner).board == gpu.board
            )
            chips = calibration.tables.get((formula, gpu.family, other))
            if of_this_board or owner not in boards or not _of_chips(chips):
                chips = None
            of_one_gpu = not (of_this_board or chips or _of_chips(table))
            designs = _designs(table)
            unrelated = not set(near) & {family for family, _ in designs}
            other_generation = gpu.design not in designs and not unrelated
            return CalibrationLookup(
                table.constants,
                table,
                f"{formula}.{owner}.{other}",
                borrowed=owner != gpu.name or not same_format,
                added=math.hypot(
                    OTHER_FORMAT_ERROR * (not same_format),
                    OTHER_GPU_ERROR * of_one_gpu,
                    UNRELATED_ARCHITECTURE_ERROR * unrelated,
                    known_chip_error(formula, gpu)
                    if of_chip
                    else unseen_chip_error(formula, gpu, other_generation),
                ),
                unrelated=unrelated,
                chips=chips,
                together=formula not in AVERAGING_FORMULAS,
            )
    constants = {each.name: each.start for each in FORMULAS[formula].constants}
    added = math.hypot(TEXTBOOK_ERROR, unseen_chip_error(formula, gpu))
    return CalibrationLookup(constants, None, "textbook", borrowed=True, added=added)


def _of_chips(table: FittedConstants | None) -> bool:
    """Fitted table → whether its errors are of GPUs that its fit had not seen."""
    return table is not None and table.held_out == HELD_OUT_GPUS


def interchangeable_formats(dtype: str) -> list[str]:
    """Return the formats with the same rate on matrix units as a format, itself first."""
    return [
        each for each in FORMAT_FALLBACKS[dtype] if each == dtype or {each, dtype} <= SAME_UNITS
    ]


def _borrowed(
    calibration: KernelCalibration, formula: str, error: float, gpu: GpuParameters, dtype: str
) -> CalibrationLookup:
    """Return the constants borrowed from another formula, with the added error."""
    found = look_up(calibration, formula, gpu, dtype)
    return replace(
        found,
        borrowed=True,
        added=math.hypot(found.added, error),
        base=found.base or formula,
        carried=math.hypot(found.carried, error),
    )


def _measured_anywhere(calibration: KernelCalibration, formula: str, dtype: str) -> bool:
    """Whether a formula has constants in a format for any GPU."""
    formats = interchangeable_formats(dtype)
    return any(name == formula and other in formats for name, _, other in calibration.tables)


def _measured_near(
    calibration: KernelCalibration, formula: str, gpu: GpuParameters, dtype: str
) -> bool:
    """Whether a formula has constants for a GPU, its chip or its architecture."""
    return any(
        (formula, owner, each) in calibration.tables
        for each in interchangeable_formats(dtype)
        for owner in (
            gpu.name,
            gpu.family,
            *_boards_with_chip(calibration, formula, gpu, each),
        )
    )


def _related(calibration: KernelCalibration, formula: str, near: Sequence[str], dtype: str) -> bool:
    """Whether a formula has constants in a format for one of some architectures."""
    formats = interchangeable_formats(dtype)
    return any((formula, owner, each) in calibration.tables for owner in near for each in formats)


def _boards_with_chip(
    calibration: KernelCalibration, formula: str, gpu: GpuParameters, dtype: str
) -> list[str]:
    """Return measured GPUs with the chip of this one, nearest memory bandwidth first."""
    presets = packaged(GPU_PRESETS)
    boards = [
        gpu_parameters(owner)
        for name, owner, other in calibration.tables
        if (name, other) == (formula, dtype) and presets.get(owner, {}).get("family") == gpu.family
    ]
    same = [each for each in boards if each.chip == gpu.chip]
    own = gpu.rated_bandwidth or gpu.bandwidth
    same.sort(key=lambda each: (abs(math.log(each.bandwidth / own)), each.name))
    return [each.name for each in same]


def known_chip_error(formula: str, gpu: GpuParameters) -> float:
    """Return the relative standard error of a board whose power limit lowers its clock.

    Where between the clock that its power sustains and the boost clock it runs is a matter of its
    temperature, its cooling and its chip (arXiv:2208.11035 finds equal boards up to 22 % apart;
    NeuSight's large products ran at 0.37 of a T4's peak in one run and at 0.49 in another): the
    standard deviation of a logarithm that may be anywhere between the two.

    Parameters
    ----------
    formula : str
        A name of `families.FORMULAS`; nothing is added where it is not limited by power.
    gpu : GpuParameters
    """
    if not FORMULAS[formula].power_limited:
        return 0.0
    attends = formula.startswith("attention")
    return math.log(1 / (gpu.sustained if attends else gpu.product_clock)) / math.sqrt(12)


def unseen_chip_error(formula: str, gpu: GpuParameters, other_generation: bool = False) -> float:
    """Return the added error of an unmeasured chip, which grows with its distance from others.

    On top of `known_chip_error` how far its power is from its architecture's reference, as nothing
    says at which power the work of its own multiprocessors runs; that its architecture was not
    measured; and figures that are not known.

    Parameters
    ----------
    formula, gpu
        As for `known_chip_error`.
    other_generation : bool
        Whether related architectures were measured, and not its own (`GpuParameters.design`).
    """
    power = UNSEEN_POWER_ERROR * math.log(1 / gpu.power_share)
    return math.hypot(
        known_chip_error(formula, gpu),
        power if FORMULAS[formula].power_limited else 0.0,
        OTHER_GENERATION_ERROR * other_generation,
        MISSING_FIGURE_ERROR * math.sqrt(gpu.missing),
    )


def _designs(table: FittedConstants) -> set[tuple[str, bool]]:
    """Return the architectures of the GPUs that a table was fitted to (`GpuParameters.design`)."""
    presets = packaged(GPU_PRESETS)
    return {gpu_parameters(name).design for name in table.gpus if name in presets}
