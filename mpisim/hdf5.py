"""HDF5 files of this package: how they are marked, written whole, opened and read.

Every file carries the root attributes ``format``, ``format_version`` and ``creator``. Files are
built in memory and written by plain file calls: HDF5 does not survive a full disk (its caches
cannot be dropped any more), and a process that failed must still be able to say so.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import __version__
from .errors import InputError, nearest
from .files import reason, staged
from .numbered import Numbered

if TYPE_CHECKING:
    from h5py import Dataset, File, Group

__all__ = [
    "CHUNK",
    "built",
    "create_column",
    "created",
    "opened",
    "read_column",
    "read_texts",
    "write_column",
    "write_texts",
]

CHUNK = 1 << 16
"""Elements of a chunk."""
_QUOTES = "'\""
MOST_PACKED = 1100
"""Bytes that a byte of a column may stand for: deflate makes 1,032 of one at most."""
SMALL = 1 << 12
"""Columns of up to this many elements are stored as they are."""


@contextmanager
def created(
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
    with staged(path, overwrite=overwrite) as file, built(format, version) as (content, image):
        yield content
        content.close()
        file.write(image.getbuffer())


@contextmanager
def built(format: str, version: int) -> Iterator[tuple[File, io.BytesIO]]:
    """Build an HDF5 file in memory; once the file is closed, the second value is its image."""
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
def opened(path: str | Path, format: str, version: int) -> Iterator[File]:
    """Open an HDF5 file of a format for reading.

    Errors of HDF5 inside the block (a damaged file) and of a missing dataset are reported as
    errors of this file, so the block should do no more than read.

    Raises
    ------
    InputError
        If there is no such file, or it is no whole HDF5 file, or of another format or a newer
        version.
    """
    import h5py

    try:
        if not Path(path).is_file():
            what = "is not a file" if Path(path).exists() else "there is no such file"
            raise InputError(f"{path}: {what}")
        with open(path, "rb"):
            pass  # HDF5 words a missing permission in its own long way
        if not h5py.is_hdf5(path):
            raise InputError(f"{path}: is not an HDF5 file; {format} files are")
        # Files do not change once they have their name; locking fails on some shared folders.
        with h5py.File(path, "r", locking=False) as file:
            _check_format(path, file, format, version)
            yield file
    except InputError:
        raise
    except OSError as error:
        text = reason(error)
        if "truncated" in text:
            text = "is truncated: the file is shorter than its header says"
        raise InputError(f"{path}: {text}") from error
    except MemoryError as error:
        raise InputError(f"{path}: the file is damaged, or too large to read: {error}") from error
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{path}: the file is damaged: {str(error).strip(_QUOTES)}") from error


def _check_format(path: str | Path, file: File, format: str, version: int) -> None:
    found = text_of(file.attrs.get("format", ""))
    if found != format:
        known = f"its format is '{found}'" if found else "it has no attribute 'format'"
        raise InputError(f"{path}: is not an {format} file: {known}{nearest(found, [format])}")
    newest = file.attrs.get("format_version", 0)
    if not isinstance(newest, np.integer) or newest < 1:
        raise InputError(f"{path}: format_version is {newest}; expected a number from 1 on")
    if newest > version:
        raise InputError(
            f"{path}: has version {newest} of {format}; this mpisim {__version__} reads up to "
            f"{version}"
        )


def text_of(value: object) -> str:
    """Return an attribute that should be text as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def write_column(
    group: Group, name: str, values: ArrayLike, units: str | None = None, about: str | None = None
) -> None:
    """Write an array as a dataset, compressed where that pays.

    Parameters
    ----------
    group : h5py.Group
    name : str
    values : array_like
    units : str, optional
        Unit of the values: ``ps``, ``s``, ``bytes``.
    about : str, optional
        One line for whoever opens the file with another tool.
    """
    values = np.asarray(values)
    dataset = group.create_dataset(name, data=values, track_times=False, **_packed(values.size))
    if units is not None:
        dataset.attrs["units"] = units
    if about is not None:
        dataset.attrs["about"] = about


def create_column(
    group: Group, name: str, length: int, dtype: DTypeLike, units: str | None = None
) -> Dataset:
    """Make a column as `write_column` does, to be filled part after part from its begin.

    Parts of `CHUNK` elements and more are compressed as they come, and need no memory afterwards.
    """
    dataset = group.create_dataset(name, (length,), dtype, track_times=False, **_packed(length))
    if units is not None:
        dataset.attrs["units"] = units
    return dataset


def _packed(length: int) -> dict[str, Any]:
    """How a column of a length is stored."""
    if length <= SMALL:
        return {}
    return {"chunks": (min(CHUNK, length),), "compression": 1, "shuffle": True}


def read_column(
    group: Group, name: str, dtype: DTypeLike, units: str | None = None, length: int | None = None
) -> NDArray:
    """Read a one-dimensional dataset, refusing what `write_column` would not have written.

    Raises
    ------
    InputError
        If it is not there, or of another type, length or unit.
    """
    where = f"{group.file.filename}: {group.name.rstrip('/')}/{name}"
    dataset = group.get(name)
    if dataset is None or not hasattr(dataset, "shape"):
        raise InputError(f"{where}: there is no such dataset{nearest(name, group)}")
    if dataset.dtype != np.dtype(dtype) or dataset.ndim != 1:
        raise InputError(
            f"{where}: has type {dataset.dtype} and shape {dataset.shape}; expected "
            f"{np.dtype(dtype)} in one dimension"
        )
    if length is not None and len(dataset) != length:
        raise InputError(f"{where}: has {len(dataset)} entries; expected {length}")
    found = dataset.attrs.get("units")
    if found != units:
        raise InputError(f"{where}: has units {found!r}; expected {units!r}")
    _check_stored(dataset, where)
    values: NDArray = dataset[:]
    return values


def _check_stored(dataset: Dataset, where: str) -> None:
    """Refuse a dataset of which parts were never written: they would be read as zeros."""
    stored = dataset.id.get_storage_size()
    if not dataset.is_virtual and dataset.nbytes > MOST_PACKED * stored:
        raise InputError(
            f"{where}: the file is damaged: {dataset.size} entries, and {stored} bytes of them"
        )


def write_texts(group: Group, name: str, texts: Sequence[str]) -> None:
    """Write texts as one dataset of utf-8 strings.

    HDF5 strings end at a null character. If any text has one, or is no valid unicode, all are
    stored as JSON strings, and the dataset says so.
    """
    import h5py

    stored: list[bytes] | NDArray[np.bytes_]
    if isinstance(texts, Numbered) and len(texts) > SMALL:
        plain, stored = True, texts.encoded()
        longest = stored.dtype.itemsize
    else:
        together = "".join(texts)
        plain = "\0" not in together and _is_utf8(together)
        stored = [(text if plain else json.dumps(text)).encode() for text in texts]
        longest = max(map(len, stored), default=0)
    if len(stored) > SMALL and (
        isinstance(stored, np.ndarray)
        or 0 < longest * len(stored) <= 2 * sum(map(len, stored))
    ):
        # Texts of one length are compressed; HDF5 keeps others one by one.
        dataset = group.create_dataset(
            name, data=np.array(stored, h5py.string_dtype("utf-8", longest)), track_times=False,
            **_packed(len(stored)),
        )  # fmt: skip
    else:
        dataset = group.create_dataset(
            name, (len(stored),), h5py.string_dtype("utf-8"), track_times=False
        )
        if len(stored):
            dataset[:] = np.array(stored, object)
    if not plain:
        dataset.attrs["encoding"] = "json"


def read_texts(group: Group, name: str, length: int | None = None) -> tuple[str, ...]:
    """Read what `write_texts` wrote.

    Raises
    ------
    InputError
        If it is not there, is no list of texts, or has another length.
    """
    where = f"{group.file.filename}: {group.name.rstrip('/')}/{name}"
    dataset = group.get(name)
    if dataset is None or not hasattr(dataset, "asstr"):
        raise InputError(f"{where}: there is no such dataset{nearest(name, group)}")
    if length is not None and dataset.shape != (length,):
        raise InputError(f"{where}: has {dataset.shape[0]} entries; expected {length}")
    if dataset.ndim != 1:
        raise InputError(f"{where}: has shape {dataset.shape}; expected one dimension")
    _check_stored(dataset, where)
    texts = dataset.asstr()[:].tolist()
    if dataset.attrs.get("encoding") == "json":
        texts = [json.loads(text) for text in texts]
    return tuple(texts)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def write_attributes(group: Group, values: Mapping[str, str]) -> None:
    """Write free texts, keys and values, as one attribute ``attributes`` in JSON."""
    group.attrs["attributes"] = json.dumps(dict(values))


def read_attributes(group: Group) -> dict[str, str]:
    """Read what `write_attributes` wrote."""
    found = json.loads(text_of(group.attrs.get("attributes", "{}")))
    if not isinstance(found, dict):
        raise InputError(f"{group.file.filename}: attribute 'attributes' is not a JSON object")
    return {str(key): str(value) for key, value in found.items()}
