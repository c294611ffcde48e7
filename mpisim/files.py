"""Output files that are whole or absent: written under another name, renamed when complete."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import DestinationError, OutputError

__all__ = ["check_output", "is_full", "is_refused", "staged", "write_json"]


def check_output(path: str | Path, *, overwrite: bool = False, device: bool = False) -> Path:
    """Check that an output file can be written, before the work that fills it is done.

    Parameters
    ----------
    path : str or Path
    overwrite : bool
        Whether a file of that name may be replaced.
    device : bool
        Whether it may be something else than a file (``/dev/stdout``, a pipe).

    Returns
    -------
    Path
        The file itself where `path` is a symbolic link, so that the link survives.

    Raises
    ------
    DestinationError
        Naming the file or folder and what is wrong with it.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise DestinationError(f"{path}: is a folder; name a file to write")
        if _is_device(Path(path)):
            if device:
                return Path(path)
            raise DestinationError(f"{path}: is not a regular file; name another file to write")
        if target.exists() and not overwrite:
            raise DestinationError(f"{path}: exists already; remove it or name another file")
        if not target.parent.is_dir():
            raise DestinationError(f"{path}: there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise DestinationError(f"{path}: the folder {target.parent} is not writable")
    except (OSError, ValueError) as error:  # a name too long, or with a null character
        raise DestinationError(f"{path}: {reason(error)}") from error
    return target


def _is_device(path: Path) -> bool:
    """Whether a path is no file to be replaced: also ``/dev/stdout`` when it leads to a file."""
    open_files = os.path.dirname(os.path.abspath(path)) in ("/dev", "/dev/fd", "/proc/self/fd")
    return path.exists() and (open_files or not path.is_file())


@contextlib.contextmanager
def staged(path: str | Path, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name when the block ends without an error.

    Parameters
    ----------
    path : str or Path
    overwrite : bool
        Whether a file of that name may be replaced.

    Yields
    ------
    binary file
        Of a hidden temporary name in the folder of `path`.

    Raises
    ------
    OutputError
        If it cannot be created (a `DestinationError`), written or renamed; nothing is left behind.
    """
    target = check_output(path, overwrite=overwrite)
    hidden = hidden_name(target)
    with reported(path):
        try:
            with open(hidden, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # some file systems only now notice that they are full
            os.replace(hidden, target)
        except BaseException:
            with contextlib.suppress(OSError):
                hidden.unlink()
            raise


def hidden_name(target: Path) -> Path:
    """Return a new name beside `target`, for what is not complete yet."""
    return target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")


@contextlib.contextmanager
def reported(path: str | Path) -> Iterator[None]:
    """Turn an error of the operating system into an `OutputError` about `path`."""
    try:
        yield
    except OSError as error:
        kind = DestinationError if is_refused(error) else OutputError
        raise kind(f"{path}: {reason(error)}") from error


def is_full(error: OSError) -> bool:
    """Return whether a disk, a quota or the largest size of files is used up."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_refused(error: OSError) -> bool:
    """Return whether an error is about the name that was given: the same would fail again."""
    return error.errno in _REFUSED


_REFUSED = {
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
    errno.EACCES, errno.EPERM, errno.EROFS,
}  # fmt: skip


def reason(error: Exception) -> str:
    """Say what the operating system, or HDF5, said; without its numbers and names."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def write_json(path: str | Path, data: object) -> None:
    """Write an object as JSON, replacing a file of that name.

    Parameters
    ----------
    path : str or Path
        A device or pipe, ``/dev/stdout`` for one, is written to as it is.
    data : object
        Dicts, lists, text and numbers, numpy's included; a NaN becomes null, what is no valid
        unicode a question mark.

    Raises
    ------
    OutputError
        If it cannot be written; nothing is left behind.
    """
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    options |= orjson.OPT_NON_STR_KEYS
    try:
        text = orjson.dumps(data, option=options)
    except TypeError:  # a name that is no valid unicode
        text = orjson.dumps(_encodable(data), option=options)
    target = check_output(path, overwrite=True, device=True)
    if _is_device(target):
        # Appending, since whatever else is printed there must not be written over.
        with reported(path), open(target, "ab") as device:
            device.write(text)
        return
    with staged(path, overwrite=True) as file:
        file.write(text)


def _encodable(data: object) -> object:
    """Return the same with texts that can be encoded."""
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode()
    if isinstance(data, dict):
        return {_encodable(key): _encodable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_encodable(value) for value in data]
    return data
