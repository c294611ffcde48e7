"""Times and sizes as text, each in the unit that suits it."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.text import rounded

__all__ = ["Unit", "duration", "quantity", "unit_for"]


@dataclass(frozen=True)
class Unit:
    """A unit of time, shown with three decimals."""

    name: str
    ps: int

    @property
    def step(self) -> int:
        """The last digit shown, in ps."""
        return self.ps // 1000

    def show(self, steps: int) -> str:
        """Show a number of last digits: ``1234`` is ``1.234``."""
        sign = "-" if steps < 0 else ""
        return f"{sign}{abs(steps) // 1000:,}.{abs(steps) % 1000:03d}"

    def of(self, ps: int) -> str:
        """Show one time, rounded by itself."""
        return self.show(rounded(ps, self.step))


UNITS = (Unit("s", 10**12), Unit("ms", 10**9), Unit("µs", 10**6), Unit("ns", 10**3))


def unit_for(ps: int) -> Unit:
    """Return the unit in which a time has digits before the point."""
    return next((unit for unit in UNITS if abs(ps) >= unit.ps), UNITS[-1])


def duration(ps: int) -> str:
    """Show one time with its own unit.

    Examples
    --------
    >>> duration(12_345_678_901)
    '12.346 ms'
    """
    unit = unit_for(ps)
    return f"{unit.of(ps)} {unit.name}"


def quantity(value: float, unit: str, base: int = 1000) -> str:
    """Show a number with a decimal prefix, or a binary one with ``base=1024``.

    Examples
    --------
    >>> quantity(4.5e11, "B/s"), quantity(4096, "B", 1024)
    ('450 GB/s', '4 KiB')
    """
    prefixes = ("", "k", "M", "G", "T", "P") if base == 1000 else ("", "Ki", "Mi", "Gi", "Ti", "Pi")
    for prefix in prefixes:
        if abs(value) < base * 0.9995 or prefix == prefixes[-1]:
            break
        value /= base
    digits = 0 if value == int(value) else max(0, 3 - len(str(int(abs(value)))))
    return f"{value:.{digits}f} {prefix}{unit}"
