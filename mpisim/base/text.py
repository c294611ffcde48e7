"""Formatting of output: aligned columns, rounded parts that add up, texts on one line."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "aligned",
    "apportioned",
    "between",
    "markdown_table",
    "one_line",
    "percent",
    "rounded",
    "shortened",
]


def aligned(cells: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    """Align columns of text: those in `left` to the left, the others to the right."""
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

    Examples
    --------
    >>> shortened("gemm_128x128_tn", 10), shortened("gemm_128x128_tn", 10, tail=3)
    ('gemm_128x…', 'gemm_1…_tn')
    """
    if len(text) <= width:
        return text
    return text[: width - 1 - tail] + "…" + (text[-tail:] if tail else "")


def one_line(text: str) -> str:
    """Put a text on one line; what no terminal shows is escaped."""
    text = " ".join(text.split())
    return text if text.isprintable() else repr(text)[1:-1]


def markdown_table(cells: Sequence[Sequence[str]]) -> str:
    """Return cells, the first row the headings, as a table in Markdown."""
    lines = ["| " + " | ".join(line) + " |" for line in cells]
    return "\n".join([lines[0], "| --- " * len(cells[0]) + "|", *lines[1:]])


def between(page: str, begin: str, end: str, text: str) -> str:
    """Return a page with a text in place of what stands between two lines.

    They are added at its end where the page lacks them.

    Examples
    --------
    >>> between("a < old > b", "<", ">", "new").split()
    ['a', '<', 'new', '>', 'b']
    """
    before, begins, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    if not begins:
        before, after = page + "\n" * bool(page), "\n"
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def rounded(value: int, step: int) -> int:
    """Divide, rounding to the nearest integer (half up)."""
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
    """Show a share with one decimal; ``-`` of nothing."""
    return f"{100 * part / whole:.1f}" if whole else "-"
