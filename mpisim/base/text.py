"""Text for people: columns, shortened lines, times and sizes.

Times are whole picoseconds. `apportioned` rounds the parts of a sum so that the parts shown add up
to the whole shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from .frozen import frozen

__all__ = [
    "WIDTH",
    "TimeUnit",
    "aligned",
    "apportioned",
    "duration",
    "error_bar",
    "format_value",
    "in_words",
    "markdown_table",
    "one_line",
    "percent",
    "percentage",
    "quantity",
    "replace_between",
    "rounded",
    "shortened",
    "unit_for",
]

WIDTH = 100
"""Characters of a line for people at most."""


def aligned(cells: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Align columns of text: those in `left` to the left, the others to the right.

    Parameters
    ----------
    cells : sequence of sequences of str
        Rows of equal length.
    left : sequence of int
        Numbers of columns, from 0; by default the first.

    Returns
    -------
    list of str
        A line for each row, without spaces at its end.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def shortened(text: str, width: int, tail: int = 0) -> str:
    """Cut a text that is too long, keeping its last `tail` characters, and show that it was cut.

    Parameters
    ----------
    text : str
    width : int
        Most characters of the result, the mark of the cut included.
    tail : int
        Less than `width`.

    Examples
    --------
    >>> shortened("gemm_128x128_tn", 10), shortened("gemm_128x128_tn", 10, tail=3)
    ('gemm_128x…', 'gemm_1…_tn')
    """
    if len(text) <= width:
        return text
    return text[: width - 1 - tail] + "…" + (text[-tail:] if tail else "")


def counted(number: int, word: str, plural: str = "") -> str:
    """Write a number of things: with the plural's s, or the plural that is given.

    Parameters
    ----------
    number : int
    word : str
        What one of them is called.
    plural : str
        What several are called, where that is not the word with an s.

    Examples
    --------
    >>> counted(1, "rank"), counted(2048, "rank"), counted(2, "class", "classes")
    ('1 rank', '2,048 ranks', '2 classes')
    """
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def one_line(text: str) -> str:
    """Put a text on one line; what no terminal shows is escaped."""
    text = " ".join(text.split())
    return text if text.isprintable() else repr(text)[1:-1]


def in_words(value: object) -> str:
    """Value of a key → text for people: yes and no for truth values."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def markdown_table(cells: Sequence[Sequence[str]]) -> str:
    """Return cells, the first row the headings, as a table in Markdown."""
    lines = ["| " + " | ".join(line) + " |" for line in cells]
    return "\n".join([lines[0], "| --- " * len(cells[0]) + "|", *lines[1:]])


def replace_between(page: str, begin: str, end: str, text: str) -> str:
    """Return a page with a text in place of what stands between two lines.

    They are added at its end where the page lacks them.

    Parameters
    ----------
    page : str
    begin, end : str
        The two lines, which stay.
    text : str
        Without empty lines around it, which are added.

    Examples
    --------
    >>> replace_between("a < old > b", "<", ">", "new").split()
    ['a', '<', 'new', '>', 'b']
    """
    before, begins, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    if not begins:
        before, after = page + "\n" * bool(page), "\n"
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


# --- times and sizes ------------------------------------------------------------------------------


@frozen
class TimeUnit:
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


TIME_UNITS = (
    TimeUnit("s", 10**12),
    TimeUnit("ms", 10**9),
    TimeUnit("µs", 10**6),
    TimeUnit("ns", 10**3),
)


def unit_for(ps: int) -> TimeUnit:
    """Return the unit in which a time has digits before the point."""
    return next((unit for unit in TIME_UNITS if abs(ps) >= unit.ps), TIME_UNITS[-1])


def duration(ps: int) -> str:
    """Show one time with its own unit.

    Examples
    --------
    >>> duration(12_345_678_901)
    '12.346 ms'
    """
    unit = unit_for(ps)
    return f"{unit.of(ps)} {unit.name}"


def rounded(value: int, step: int) -> int:
    """Divide, rounding to the nearest integer (half up).

    Parameters
    ----------
    value : int
        May be negative.
    step : int
        In the unit of `value`; above 0.

    Returns
    -------
    int
        Number of steps.
    """
    return (2 * value + step) // (2 * step)


def apportioned(parts: Sequence[int], step: int) -> list[int]:
    """Express parts in steps so that their sum is that of the rounded whole.

    Every part is rounded down or up; those with the largest remainders are rounded up.

    Parameters
    ----------
    parts : sequence of int
        Not negative.
    step : int
        Above 0.

    Returns
    -------
    list of int
        Their sum is ``rounded(sum(parts), step)``.

    Examples
    --------
    >>> apportioned([1_500, 1_500, 1_000], 1_000)
    [2, 1, 1]
    """
    shares = [part // step for part in parts]
    missing = rounded(sum(parts), step) - sum(shares)
    # Equal remainders: the first part goes up.
    by_remainder = sorted(range(len(parts)), key=lambda i: (-(parts[i] % step), i))
    for i in by_remainder[:missing]:
        shares[i] += 1
    return shares


def percent(part: int, whole: int) -> str:
    """Show a share with one decimal; ``-`` of nothing.

    Parameters
    ----------
    part, whole : int
        In one unit. Without `whole` (0) there is no share.

    Returns
    -------
    str
        In percent, without the sign.
    """
    return f"{100 * part / whole:.1f}" if whole else "-"


def percentage(share: float, digits: int = 0, *, signed: bool = False) -> str:
    """Show a share in a sentence; `percent` is for columns that have the sign at their head.

    Parameters
    ----------
    share : float
        Of 1.
    digits : int
        Behind the point.
    signed : bool
        Whether it is a change, which has a sign.

    Examples
    --------
    >>> percentage(0.4452, 1), percentage(0.019, 2, signed=True)
    ('44.5 %', '+1.90 %')
    """
    return f"{100 * share:{'+' if signed else ''}.{digits}f} %"


def error_bar(error: float) -> str:
    """Relative error (one standard deviation) → text with two digits, as ``± 15 %``.

    Examples
    --------
    >>> error_bar(0.0812), error_bar(0.2), error_bar(1.138)
    ('± 8.1 %', '± 20 %', '± 110 %')
    """
    return f"± {float(f'{100 * error:.2g}'):g} %"


def quantity(value: float, unit: str, base: int = 1000) -> str:
    """Show a number with a decimal prefix, or a binary one with ``base=1024``.

    Parameters
    ----------
    value : float
        In `unit`. Three digits are shown; whole numbers have no decimals.
    unit : str
        Without a prefix.
    base : int
        1000 or 1024.

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


def format_value(value: object) -> str:
    """Return a value as TOML and reports write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
