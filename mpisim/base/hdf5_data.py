"""What HDF5 files hold: columns of numbers, lists of texts, attributes → written and read, checked.

A column is a one-dimensional dataset with a type and units. Columns and texts that are long are
compressed. Reading refuses what writing would not have written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from .errors import InputError, nearest
from .hdf5 import CHUNK, text_of
from .numbered_texts import NumberedTexts

if TYPE_CHECKING:
    from h5py import Dataset, Group

__all__ = [
    "MAX_PLAIN_COLUMN",
    "StoredType",
    "copy_part",
    "create_column",
    "read_attributes",
    "read_column",
    "read_json_text",
    "read_texts",
    "write_attributes",
    "write_column",
    "write_json_text",
    "write_texts",
]

MAX_PACKED_RATIO = 1100
"""Bytes that a byte of a column may represent: deflate makes 1,032 of one at most."""

MAX_PLAIN_COLUMN = 1 << 12
"""Columns of up to this many elements are stored as they are."""

MAX_ATTRIBUTE = 1 << 15
"""Bytes up to which a text is stored as an attribute; HDF5 allows 64 KiB."""

StoredType: TypeAlias = DTypeLike | type[IntEnum] | Mapping[str, int]
"""Type of a column: a numpy type, or names of the numbers 0 to 255, which are stored with them."""


def _names(stored: StoredType) -> dict[str, int] | None:
    """Type of a column → the names of its numbers; None if it has none."""
    if isinstance(stored, type) and issubclass(stored, IntEnum):
        return {each.name: each.value for each in stored}
    return {**stored} if isinstance(stored, Mapping) else None  # type: ignore[dict-item]


def _dtype(stored: StoredType) -> np.dtype[Any]:
    """Type of a column → its type in memory."""
    return np.dtype(np.uint8 if _names(stored) is not None else stored)  # type: ignore[arg-type]


def _in_file(stored: StoredType) -> np.dtype[Any]:
    """Type of a column → its type in the file."""
    import h5py

    names = _names(stored)
    return _dtype(stored) if names is None else h5py.enum_dtype(names, basetype=np.uint8)


def write_column(
    group: Group,
    name: str,
    values: ArrayLike,
    units: str | None = None,
    about: str | None = None,
    *,
    stored: StoredType | None = None,
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
    stored : type, optional
        Type in the file; by default that of the values.
    """
    values = np.asarray(values, None if stored is None else _dtype(stored))
    dataset = group.create_dataset(
        name,
        data=values,
        dtype=None if stored is None else _in_file(stored),
        track_times=False,
        **_packed(values.size),
    )
    if units is not None:
        dataset.attrs["units"] = units
    if about is not None:
        dataset.attrs["about"] = about


def create_column(
    group: Group, name: str, length: int, stored: StoredType, units: str | None = None
) -> Dataset:
    """Make a column as `write_column` does, to be filled part after part from its begin.

    Parts of `CHUNK` elements and more are compressed as they come, and need no memory afterwards.

    Parameters
    ----------
    group : h5py.Group
    name : str
    length : int
        Number of elements.
    stored : type
        Type in the file.
    units : str, optional
        Unit of the values: ``ps``, ``s``, ``bytes``.

    Returns
    -------
    h5py.Dataset, shape (length,)
    """
    dataset = group.create_dataset(
        name, (length,), _in_file(stored), track_times=False, **_packed(length)
    )
    if units is not None:
        dataset.attrs["units"] = units
    return dataset


def copy_part(column: Dataset, first: int, part: Dataset, pad: int) -> None:
    """Copy a part of a column from another file, whole chunks as they are.

    Parameters
    ----------
    column : h5py.Dataset
        From `create_column`.
    first : int
        Where the part begins in the column.
    part : h5py.Dataset
        Another such, of the same type; its chunks begin where those of `column` do if
        ``pad == first % CHUNK``.
    pad : int
        Elements of `part` before its begin that are not copied.
    """
    begin, end = first, first + len(part) - pad
    shift = first - pad  # from places in the part to those in the column
    if column.chunks == part.chunks == (CHUNK,) and not shift % CHUNK:
        inside = range(-(-begin // CHUNK) * CHUNK, end // CHUNK * CHUNK, CHUNK)
        for at in inside:
            mask, data = part.id.read_direct_chunk((at - shift,))
            column.id.write_direct_chunk((at,), data, mask)
        edges = [(begin, inside.start), (inside.stop, end)] if inside else [(begin, end)]
    else:
        edges = [(begin, end)]
    for left, right in edges:
        if left < right:
            column[left:right] = part[left - shift : right - shift]


def _packed(length: int) -> dict[str, Any]:
    """Length of a column → how it is stored."""
    if length <= MAX_PLAIN_COLUMN:
        return {}
    return {"chunks": (min(CHUNK, length),), "compression": 1, "shuffle": True}


def read_column(
    group: Group, name: str, stored: StoredType, units: str | None = None, length: int | None = None
) -> NDArray:
    """Read a one-dimensional dataset, refusing what `write_column` would not have written.

    Parameters
    ----------
    group : h5py.Group
    name : str
    stored : type
        Type that it must have in the file, with the names of its numbers if that gives any.
    units : str, optional
        Unit that it must have; None: it must have none.
    length : int, optional
        Number of elements that it must have; by default any.

    Returns
    -------
    ndarray, shape (length,)
        Of the type `stored`; numbers that have names are plain numbers.

    Raises
    ------
    InputError
        If it is not there, or of another type, length or unit, or its numbers have other names.
    """
    where = f"{group.name.rstrip('/')}/{name}"
    dtype, names = _dtype(stored), _names(stored)
    dataset = group.get(name)
    if dataset is None or not hasattr(dataset, "shape"):
        raise InputError(f"{where}: there is no such dataset{nearest(name, group)}")
    if dataset.dtype != dtype or dataset.ndim != 1:
        raise InputError(
            f"{where}: has type {dataset.dtype} and shape {dataset.shape}; expected "
            f"{dtype} in one dimension"
        )
    if names is not None and (dataset.dtype.metadata or {}).get("enum") != names:
        raise InputError(f"{where}: its numbers do not have the names that they should have")
    if length is not None and len(dataset) != length:
        raise InputError(f"{where}: has {len(dataset)} entries; expected {length}")
    found = dataset.attrs.get("units")
    if found != units:
        raise InputError(f"{where}: has units {found!r}; expected {units!r}")
    _check_stored(dataset, where)
    values: NDArray = dataset[:]
    return values.view(dtype)  # without the names


def _check_stored(dataset: Dataset, where: str) -> None:
    """Refuse a dataset of which parts were never written: they would be read as zeros."""
    stored = dataset.id.get_storage_size()
    if not dataset.is_virtual and dataset.nbytes > MAX_PACKED_RATIO * stored:
        raise InputError(
            f"{where}: the file is damaged: {dataset.size} entries, and {stored} bytes of them"
        )


def write_texts(group: Group, name: str, texts: Sequence[str]) -> None:
    """Write texts as one dataset of utf-8 strings.

    HDF5 strings end at a null character. If any text has one, or is no valid unicode, all are
    stored as JSON strings, and the dataset says so.

    Parameters
    ----------
    group : h5py.Group
    name : str
    texts : sequence of str
        May be empty.
    """
    import h5py

    if isinstance(texts, NumberedTexts) and len(texts) > MAX_PLAIN_COLUMN:
        plain, packed, stored = True, True, texts.encoded()
    else:
        number = {text: i for i, text in enumerate(dict.fromkeys(texts))}  # many may be equal
        together = "".join(number)
        plain = "\0" not in together and _is_utf8(together)
        distinct = [(text if plain else json.dumps(text)).encode() for text in number]
        at = np.fromiter(map(number.__getitem__, texts), np.intp, len(texts))
        lengths = np.array([*map(len, distinct)], np.int64)
        packed = len(at) > MAX_PLAIN_COLUMN and (
            0 < lengths.max() * len(at) <= 2 * lengths[at].sum()
        )
        stored = np.array(distinct, np.bytes_ if packed else object)[at]
    if packed:  # texts of about one length are compressed; HDF5 keeps others one by one
        dataset = group.create_dataset(
            name,
            data=stored.astype(h5py.string_dtype("utf-8", stored.dtype.itemsize)),
            track_times=False,
            **_packed(len(stored)),
        )
    else:
        dataset = group.create_dataset(
            name, (len(stored),), h5py.string_dtype("utf-8"), track_times=False
        )
        if len(stored):
            dataset[:] = stored
    if not plain:
        dataset.attrs["encoding"] = "json"


def read_texts(group: Group, name: str, length: int | None = None) -> tuple[str, ...]:
    """Read what `write_texts` wrote.

    Parameters
    ----------
    group : h5py.Group
    name : str
    length : int, optional
        Number of texts that there must be; by default any.

    Raises
    ------
    InputError
        If it is not there, is no list of texts, or has another length.
    """
    where = f"{group.name.rstrip('/')}/{name}"
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


def write_json_text(group: Group, name: str, value: object) -> None:
    """Write a value of JSON's types as one text; `read_json_text` reads it.

    Parameters
    ----------
    group : h5py.Group
    name : str
    value : object
        What `json.dumps` takes.
    """
    write_texts(group, name, [json.dumps(value)])


def read_json_text(group: Group, name: str) -> Any:
    """Dataset that `write_json_text` wrote → the value, in JSON's types. Use it in `reading_kept`.

    Parameters
    ----------
    group : h5py.Group
    name : str

    Raises
    ------
    InputError
        If it is not there, or is no list of one text.
    ValueError
        If the text is no JSON.
    """
    return json.loads(read_texts(group, name, 1)[0])


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def write_attributes(group: Group, values: Mapping[str, str]) -> None:
    """Write free texts, keys and values, as one attribute ``attributes`` in JSON.

    An attribute of HDF5 holds 64 kB: what is longer becomes a dataset of that name.

    Parameters
    ----------
    group : h5py.Group
    values : mapping of str to str
    """
    text = json.dumps(dict(values))
    if len(text) <= MAX_ATTRIBUTE:
        group.attrs["attributes"] = text
    else:
        write_texts(group, "attributes", [text])


def read_attributes(group: Group) -> dict[str, str]:
    """Read what `write_attributes` wrote."""
    if "attributes" in group:
        text = "".join(read_texts(group, "attributes"))
    else:
        text = text_of(group.attrs.get("attributes", "{}"))
    found = json.loads(text)
    if not isinstance(found, dict):
        raise InputError("attribute 'attributes' is not a JSON object")
    return {str(key): str(value) for key, value in found.items()}
