"""matplotlib figures → picture files; names in them are plain text, not mathtext.

matplotlib is an extra (``mpisim[draw]``) and slow to load: nothing here loads it before a picture
is asked for.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UsageError
from .files import check_output, write_whole
from .text import one_line, shortened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MOST_INCHES", "check_picture", "name_text", "new_figure", "save_picture"]

ENDINGS = (".svg", ".png", ".pdf")

MOST_INCHES = 60
"""Of a side of a figure: at 150 dots an inch more than any screen shows."""


def check_picture(option: str, path: str | Path, *, overwrite: bool) -> None:
    """Check that a picture can be drawn and written, before the work that fills it.

    Parameters
    ----------
    option : str
        That names it, for messages.
    path : str or Path
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    UsageError
        If it has another ending, or there is no matplotlib.
    DestinationError
        If it cannot be written.
    """
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise UsageError(f"{option} {path}: pictures end in .svg, .png or .pdf")
    check_output(path, overwrite=overwrite)
    try:
        import_module("matplotlib.figure")
    except ImportError as error:
        raise UsageError(
            f"{option} {path}: needs matplotlib, which is not installed: pip install 'mpisim[draw]'"
        ) from error


def new_figure(width: float, height: float) -> tuple[Figure, Any]:
    """Size in inches → a figure, and axes that fill it.

    Parameters
    ----------
    width, height : float
        Inches, which are the unit of the axes too, y upwards; at most `MOST_INCHES` are drawn.
    """
    figure = import_module("matplotlib.figure").Figure(
        figsize=(min(width, MOST_INCHES), min(height, MOST_INCHES))
    )
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    return figure, axes


def name_text(name: str, width: int) -> str:
    """Name that a user gave → text of a picture, to be drawn with ``parse_math=False``.

    Parameters
    ----------
    name : str
        May have any characters.
    width : int
        Characters at most; the text is one line.
    """
    printable = "".join(
        each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name
    )
    encodable = printable.encode("utf-8", "replace").decode()
    return shortened(one_line(encodable), width)


def save_picture(figure: Figure, path: str | Path, title: str, *, overwrite: bool) -> None:
    """Write a figure, as a whole or not at all.

    Text of an SVG stays text, and the same figure gives the same file.

    Parameters
    ----------
    figure : Figure
    path : str or Path
        Its ending decides on the format.
    title : str
        Of the picture, for its properties.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
    """
    ending = Path(path).suffix.lower()[1:]
    metadata: dict[str, Any] = {"Title": name_text(title, 200)}
    if ending == "svg":
        metadata["Date"] = None
    elif ending == "pdf":
        metadata["CreationDate"] = None
    settings = {"svg.fonttype": "none", "svg.hashsalt": "mpisim", "pdf.fonttype": 42}
    with (
        import_module("matplotlib").rc_context(settings),
        write_whole(path, overwrite=overwrite) as file,
    ):
        figure.savefig(file, format=ending, dpi=150, metadata=metadata)
