"""How text is drawn: colours where a person reads it on a terminal, blocks where they can be shown.

What is written into a file or a pipe has no escape codes, and reads the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

from ..base.frozen import frozen
from ..base.text import apportioned

__all__ = ["PLAIN", "Drawing", "drawing_for"]

BLOCKS = "█▓▒░▚▞▤▥▦▧▨▩"
"""Fills of the parts of a bar, one after another."""

LETTERS = "#=*+o%&@$xsz"
"""The same where blocks cannot be shown."""

COLOURS = (34, 36, 32, 35, 33, 31, 94, 96, 92, 95, 93, 91)
"""Of the parts of a bar: codes of ANSI X3.64 (ISO 6429), which every terminal knows."""

MARGIN, LEAST_BAR = 3, 20
"""Columns of a terminal beside a bar, and the shortest bar."""

BLANK = "·", "."
"""Fill of what is no work."""


@frozen
class Drawing:
    """What can be shown.

    Attributes
    ----------
    colour : bool
    blocks : bool
        Whether block characters can be shown; else ASCII.
    columns : int
        Of the terminal; 0 of what is none, which has room for all.
    """

    colour: bool = False
    blocks: bool = True
    columns: int = 0

    def fill(self, number: int, length: int = 1, *, blank: bool = False) -> str:
        """Return a piece of a bar.

        Parameters
        ----------
        number : int
            Of the part.
        length : int
            In characters.
        blank : bool
            Whether it stands for nothing.
        """
        if blank:
            return BLANK[not self.blocks] * length
        if self.colour and self.blocks:
            return self.coloured(BLOCKS[0] * length, COLOURS[number % len(COLOURS)])
        fills = BLOCKS if self.blocks else LETTERS
        text = fills[number % len(fills)] * length
        return self.coloured(text, COLOURS[number % len(COLOURS)])

    def bar(self, parts: Sequence[int], width: int, blank: int | None = None) -> str:
        """Return parts side by side, as long as their shares of the whole.

        Parameters
        ----------
        parts : sequence of int
            Not negative.
        width : int
            In characters, less on a terminal that has not so many columns.
        blank : int, optional
            The part that stands for nothing.
        """
        whole = sum(parts)
        if self.columns:
            width = min(width, max(self.columns - MARGIN, LEAST_BAR))
        if not whole:
            return ""
        lengths = apportioned([part * width for part in parts], whole)
        return "".join(
            self.fill(i, length, blank=i == blank) for i, length in enumerate(lengths) if length
        )

    def bold(self, text: str) -> str:
        """Return a text that stands out."""
        return self.coloured(text, 1)

    def warning(self, text: str) -> str:
        """Return a text in the colour of warnings, where there are colours."""
        return self.coloured(text, 31)

    def coloured(self, text: str, code: int) -> str:
        """Return a text in a colour.

        Parameters
        ----------
        text : str
        code : int
            As of `COLOURS`.
        """
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text


PLAIN = Drawing()
"""For files: blocks, no colours."""


def drawing_for(stream: TextIO, *, launched: bool) -> Drawing:
    """Return what a stream can show. Local.

    Colours are for a terminal, unless ``NO_COLOR`` is set or ``TERM`` is ``dumb``. A process that
    ``mpirun`` started may have a terminal that leads into the log of a batch job, so there they
    must be asked for: ``MPISIM_COLOR=1``. ``MPISIM_COLOR=0`` is none anywhere.

    Parameters
    ----------
    stream : file
    launched : bool
        Whether a launcher of MPI started this process.
    """
    setting = os.environ.get("MPISIM_COLOR") or ("0" if launched else "1")
    colour = (
        setting != "0"
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
        and stream.isatty()
    )
    try:
        (BLOCKS + BLANK[0]).encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return Drawing(colour, blocks=False, columns=_columns(stream))
    return Drawing(colour, columns=_columns(stream))


def _columns(stream: TextIO) -> int:
    """Return the columns of a terminal; 0 of what is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (AttributeError, OSError, ValueError):
        return 0
