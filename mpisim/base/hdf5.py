"""HDF5 files of this package: how they are marked, written whole, and opened.

Every file carries the root attributes ``format``, ``format_version`` and ``creator``. Files are
built in memory and written by plain file calls: HDF5 does not survive a full disk (its caches
cannot be dropped any more), and a process that failed must still be able to say so. What files hold
is written and read by :mod:`.hdf5_data`.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from .errors import InputError, nearest
from .files import neighbour, reason, write_whole
from .version import __version__

if TYPE_CHECKING:
    from h5py import File

__all__ = [
    "CHUNK",
    "READ_ERRORS",
    "build_file",
    "create_file",
    "describe_damage",
    "open_file",
    "reading_kept",
    "text_of",
]

CHUNK = 1 << 16
"""Elements of a chunk of a column."""

_QUOTES = "'\""
_INNER = re.compile(r"\(([^()]+)\)$")


@contextmanager
def create_file(
    path: str | Path, format: str, version: int, *, overwrite: bool = False
) -> Iterator[File]:
    """Build an HDF5 file; it appears under its name when the block ends without an error.

    Parameters
    ----------
    path : str or Path
    format : str
        What the file holds, such as ``mpisim-program``.
    version : int
        Version of that format.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If it cannot be written; nothing is left behind.
    """
    with (
        write_whole(path, overwrite=overwrite) as file,
        build_file(format, version) as (content, image),
    ):
        yield content
        content.close()
        file.write(image.getbuffer())


@contextmanager
def build_file(format: str, version: int) -> Iterator[tuple[File, io.BytesIO]]:
    """Build an HDF5 file in memory; once the file is closed, the second value is its image.

    Parameters
    ----------
    format : str
        What the file holds, such as ``mpisim-program``.
    version : int
        Version of that format.
    """
    import h5py

    image = io.BytesIO()
    # The bounds let tools that know nothing newer than HDF5 1.10 read it (virtual datasets: 1.10).
    # Columns are filled from their begins on: each needs its last chunk or two, and no more.
    keep = 2 * CHUNK * np.dtype(np.int64).itemsize
    with h5py.File(image, "w", libver=("earliest", "v110"), rdcc_nbytes=keep) as file:
        file.attrs["format"] = format
        file.attrs["format_version"] = version
        file.attrs["creator"] = f"mpisim {__version__}"
        yield file, image


@contextmanager
def open_file(path: str | Path, format: str, version: int) -> Iterator[File]:
    """Open an HDF5 file of a format for reading.

    Errors of HDF5 inside the block (a damaged file) are reported as errors of this file, and an
    `InputError` gets the file's name in front, so the block should do no more than read.

    Parameters
    ----------
    path : str or Path
    format : str
        What the file must hold, such as ``mpisim-program``.
    version : int
        The newest version of that format that the caller can read.

    Raises
    ------
    InputError
        If there is no such file, or it is no whole HDF5 file, or of another format or a newer
        version.
    """
    try:
        if not Path(path).is_file():
            if Path(path).exists():
                raise InputError("is not a file")
            raise InputError(f"there is no such file{neighbour(Path(path))}")
        # Through a file of Python's: HDF5 itself locks files, which fails on some shared folders,
        # and opens none that this process has open already in another way.
        with open(path, "rb") as bare, _hdf5(bare, format) as file:
            _check_format(file, format, version)
            yield file
    except InputError as error:  # of any kind, and with all it has
        error.args = (f"{path}: {error}",)
        raise
    except READ_ERRORS as error:
        raise InputError(f"{path}: {describe_damage(error)}") from error


def _hdf5(bare: BinaryIO, format: str) -> File:
    """Open an HDF5 file for reading."""
    import h5py

    try:
        return h5py.File(bare, "r")
    except OSError as error:
        if "signature" not in str(error):
            raise
        found = "empty" if not os.fstat(bare.fileno()).st_size else "not an HDF5 file"
        raise InputError(f"is {found}; {format} files are HDF5") from error


READ_ERRORS = (
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What reading a damaged HDF5 file raises."""


def describe_damage(error: Exception) -> str:
    """Say in plain words what an error of reading an HDF5 file means."""
    text = reason(error).strip(_QUOTES)
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {text}"
    if "truncated" in text:
        return "is truncated: the file is shorter than its header says"
    inner = _INNER.search(text)  # behind what HDF5 was about to do
    return (
        "the file is damaged (incomplete, or changed after it was written; HDF5: "
        f"{inner[1] if inner else text})"
    )


def _check_format(file: File, format: str, version: int) -> None:
    found = text_of(file.attrs.get("format", ""))
    if found != format:
        known = f"its format is '{found}'" if found else "it has no attribute 'format'"
        raise InputError(f"is not an {format} file: {known}{nearest(found, [format])}")
    newest = file.attrs.get("format_version", 0)
    if not isinstance(newest, np.integer) or newest < 1:
        raise InputError(f"format_version is {newest}; expected a number from 1 on")
    if newest > version:
        raise InputError(
            f"has version {newest} of {format}; this mpisim {__version__} reads up to {version}"
        )


def text_of(value: object) -> str:
    """Return an attribute that should be text as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@contextmanager
def reading_kept(what: str) -> Iterator[None]:
    """Report values that are not as they were written as damage.

    Parameters
    ----------
    what : str
        What the file keeps, for the message: ``"job"``.

    Raises
    ------
    InputError
        In place of errors of looking up, of types and of values.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"the {what} kept in it is damaged: {error}") from error
