"""Tensors of a file that ``torch.save`` wrote, without PyTorch and without running what it holds.

Such a file is a zip archive with one pickle, ``…/data.pkl``, and the bytes of each storage beside
it, ``…/data/0`` and so on (torch/serialization.py). A pickle can call anything; here it may make
tensors and ordered dictionaries, and nothing else. Tensors are views of the file: what is not
looked at is not read.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError

__all__ = ["read_torch_file"]

STORAGES = {
    "ByteStorage": "u1",
    "CharStorage": "i1",
    "ShortStorage": "<i2",
    "IntStorage": "<i4",
    "LongStorage": "<i8",
    "HalfStorage": "<f2",
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "BoolStorage": "?",
}
"""Classes of storages, and the elements they hold."""

LOCAL_HEADER = struct.Struct("<26x2H")
"""Of a member of a zip archive: the lengths of its name and of what stands behind that."""


def read_torch_file(path: str | Path) -> Any:
    """Return what a file of ``torch.save`` holds, with arrays in place of tensors.

    Raises
    ------
    InputError
        If it is no such file, or holds other things than tensors in plain containers.
    """
    try:
        with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
            members = {each.filename: each for each in archive.infolist()}
            name = next((each for each in members if each.endswith("data.pkl")), None)
            if name is None:
                raise InputError(f"{path}: holds no data.pkl; torch.save writes one")
            with archive.open(name) as data:
                folder = name.removesuffix("data.pkl")
                return _Unpickler(data, Path(path), file, members, folder).load()
    except zipfile.BadZipFile as error:
        packed = " (unpack it first: gunzip)" if str(path).endswith(".gz") else ""
        raise InputError(
            f"{path}: no file of torch.save, which is a zip archive{packed}"
        ) from error
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged, or no file of tensors: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


class _Storage:
    """The class of a storage: what its elements are."""

    def __init__(self, name: str) -> None:
        self.dtype = np.dtype(STORAGES[name])


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        data: Any,
        path: Path,
        file: BinaryIO,
        members: dict[str, zipfile.ZipInfo],
        folder: str,
    ) -> None:
        super().__init__(data)
        self._path, self._file, self._members, self._folder = path, file, members, folder

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return _Storage(name)
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is no tensor")

    def persistent_load(self, pid: Any) -> NDArray[Any]:
        kind, storage, key, _, count = pid
        if kind != "storage" or not isinstance(storage, _Storage):
            raise pickle.UnpicklingError(f"it refers to {pid!r}, which is no storage")
        member = self._members[f"{self._folder}data/{key}"]
        if member.compress_type != zipfile.ZIP_STORED:
            raise pickle.UnpicklingError("its storages are compressed, as torch.save never does")
        if member.file_size < count * storage.dtype.itemsize:
            raise pickle.UnpicklingError(f"storage {key} ends early")
        self._file.seek(member.header_offset)
        name, extra = LOCAL_HEADER.unpack(self._file.read(LOCAL_HEADER.size))
        begin = member.header_offset + LOCAL_HEADER.size + name + extra
        if not count:
            return np.zeros(0, storage.dtype)
        return np.memmap(self._path, storage.dtype, "r", begin, (count,))


def _tensor(
    storage: NDArray[Any],
    offset: int,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    *_: Any,
) -> NDArray[Any]:
    """Return a view of a storage, within its bounds."""
    if min((offset, *size, *stride)) < 0:
        raise pickle.UnpicklingError("a tensor has a negative size")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 not in size and last >= len(storage):
        raise pickle.UnpicklingError("a tensor exceeds its storage")
    steps = tuple(step * storage.itemsize for step in stride)
    return np.lib.stride_tricks.as_strided(storage[offset:], size, steps, writeable=False)
