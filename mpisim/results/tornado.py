"""Steps with other hardware, first order and simulated again: what `mpisim.sensitivity` returns."""

from __future__ import annotations

from ..base.frozen import frozen

__all__ = ["Bar", "Effect", "Tornado", "agree"]


@frozen
class Effect:
    """A step with another value of a quantity.

    Attributes
    ----------
    factor : float
        Times what it is.
    first_order : float, optional
        Relative change of the step by the elasticity; None where there is none.
    step_ps : int, optional
        The step simulated again; None where it was not.
    fits : bool, optional
        Whether it fits into memory, where that may be another answer than without the change.
    headroom : int, optional
        Bytes then left on the fullest GPU; below 0: missing.
    agrees : bool, optional
        Whether both changes agree, see `agree`; None without both.
    moved : bool, optional
        Whether the critical path is another; None where it was not simulated again.
    note : str
        Why they do not agree, or why it could not be simulated.
    """

    factor: float
    first_order: float | None = None
    step_ps: int | None = None
    fits: bool | None = None
    headroom: int | None = None
    agrees: bool | None = None
    moved: bool | None = None
    note: str = ""


@frozen
class Bar:
    """One quantity of a tornado.

    Attributes
    ----------
    quantity : str
        As `mpisim.prediction.quantities.NAMES` has it: "nic_bandwidth".
    name, key, now : str
        As of `Sensitivities`.
    elasticity : float, optional
        None of what has no derivative: memory, the micro-batch size.
    effects : tuple of Effect
        In the order of their factors.
    """

    quantity: str
    name: str
    key: str
    now: str
    elasticity: float | None
    effects: tuple[Effect, ...]


@frozen
class Tornado:
    """How a step answers to each quantity, by its derivative and simulated again.

    Attributes
    ----------
    title : str
    step_ps : int
    fits : bool, optional
        Whether it fits into memory; None of a program, which does not say.
    headroom : int, optional
        Bytes left on the fullest GPU; below 0: missing.
    bars : tuple of Bar
        The largest effect first.
    not_applicable : tuple of str
        Quantities that were asked for and do not apply, each with the reason.
    """

    title: str
    step_ps: int
    fits: bool | None
    headroom: int | None
    bars: tuple[Bar, ...]
    not_applicable: tuple[str, ...] = ()


MAX_DIFFERENCE = 0.1
"""Share of a change by which first order and simulation may differ and still agree."""

NEGLIGIBLE = 5e-4
"""Difference of two changes, as a share of the step, that counts as none."""


def agree(first_order: float, simulated: float) -> bool:
    """Whether two relative changes of a step agree.

    They are where they differ by no more than a tenth of the larger one, or 0.05 % of the step.

    Parameters
    ----------
    first_order, simulated : float

    Examples
    --------
    >>> agree(-0.050, -0.046), agree(-0.050, -0.040), agree(0.0, 0.0004)
    (True, False, True)
    """
    most = max(abs(first_order), abs(simulated))
    return abs(first_order - simulated) <= max(MAX_DIFFERENCE * most, NEGLIGIBLE)
