"""Reading text files, and writing output files that are complete or absent.

A file has a hidden name until it is complete. Only then it gets its own, and only if there is no
such file by now, whichever program made it; there are no locks that a killed program leaves.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .errors import DestinationError, InputError, OutputError, nearest

__all__ = [
    "check_output",
    "decode_text",
    "is_full",
    "is_refused",
    "neighbour",
    "read_text",
    "rename_into_place",
    "write_json",
    "write_whole",
]

WITHOUT_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK)
"""Error numbers of file systems without hard links."""
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""First bytes of texts in other encodings; UTF-32's come first, they begin as one of UTF-16's."""


def read_text(path: str | Path) -> str:
    """Return the text of a file of the user's, without a byte order mark.

    Raises
    ------
    InputError
        If it cannot be read or is no text in UTF-8.
    """
    if not str(path):
        raise InputError("the name of an input file is empty")
    try:
        contents = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name with a null character
        near = neighbour(Path(path)) if isinstance(error, FileNotFoundError) else ""
        raise InputError(f"{path}: cannot be read: {reason(error)}{near}") from error
    return decode_text(contents, path)


def neighbour(path: Path) -> str:
    """Path of a missing file → hint that names the nearest beside it; empty if none is near."""
    try:
        beside = [each.stem for each in path.parent.iterdir() if each.suffix == path.suffix]
    except (OSError, ValueError):
        return ""
    return nearest(path.stem, beside).replace("'?", f"{path.suffix}'?")


def decode_text(contents: bytes, path: str | Path) -> str:
    """Return the bytes of a file as text, as `read_text` does; all lines end in a line feed.

    Parameters
    ----------
    contents : bytes
        In UTF-8, with or without a byte order mark, which is dropped.
    path : str or Path
        Of the file, for messages; it is not opened.

    Raises
    ------
    InputError
        If they are no text in UTF-8.
    """
    for mark, name in BYTE_ORDER_MARKS.items():
        if contents.startswith(mark):
            raise InputError(f"{path}: is a text in {name}; save it in UTF-8")
    try:
        text = contents.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = contents.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}: not a text file in UTF-8 (line {line}, byte {error.start})"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


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
        if not str(path):
            raise DestinationError("the name of an output file is empty")
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise DestinationError(f"{path}: is a folder; name a file to write")
        if _is_device(Path(path)):
            if device:
                return Path(path)
            raise DestinationError(f"{path}: is not a regular file; name another file to write")
        if target.exists() and not overwrite:
            raise DestinationError(f"{path}: exists already; name another file, or --overwrite it")
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
def write_whole(path: str | Path, *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Open a file for writing that appears under its name when the block ends without an error.

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
        If it cannot be created (a `DestinationError`), written or renamed, or if another program
        has made a file of that name since; nothing is left behind.
    """
    target = check_output(path, overwrite=overwrite)
    hidden = hidden_name(target)
    with os_errors_reported(path):
        try:
            with open(hidden, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # some file systems only now notice that they are full
            rename_into_place(hidden, target, path, overwrite=overwrite)
        except BaseException:
            with contextlib.suppress(OSError):
                hidden.unlink()
            raise


def rename_into_place(hidden: Path, target: Path, path: str | Path, *, overwrite: bool) -> None:
    """Give a complete file its own name. Local.

    Parameters
    ----------
    hidden : Path
        The file, in the folder of `target`.
    target : Path
    path : str or Path
        What the user calls `target`, for messages.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If there is a file of that name by now and it may not be replaced.
    OSError
        Whatever else the operating system says.
    """
    if overwrite:
        os.replace(hidden, target)
        return
    try:
        try:
            os.link(hidden, target)  # unlike a renaming it fails where there is one already
        except OSError as error:
            if error.errno not in WITHOUT_LINKS:
                raise
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            os.replace(hidden, target)
            return
    except FileExistsError as error:
        raise OutputError(
            f"{path}: another program made it in the meantime, and it is left as it is; name "
            "another file"
        ) from error
    hidden.unlink()


def hidden_name(target: Path) -> Path:
    """Return a new name beside `target`, for what is not complete yet."""
    return target.with_name(f".{target.name[:200]}.{os.urandom(4).hex()}.part")


@contextlib.contextmanager
def os_errors_reported(path: str | Path) -> Iterator[None]:
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
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
}


def reason(error: Exception) -> str:
    """Return the message of an error of the operating system or HDF5, without numbers and names."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def write_json(path: str | Path, data: object, *, overwrite: bool = False) -> None:
    """Write an object as JSON.

    Parameters
    ----------
    path : str or Path
        A device or pipe, ``/dev/stdout`` for one, is written to as it is.
    data : object
        Dicts, lists, text and numbers, numpy's included; a NaN becomes null, what is no valid
        unicode a question mark.
    overwrite : bool
        Whether a file of that name may be replaced.

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
    target = check_output(path, overwrite=overwrite, device=True)
    if _is_device(target):
        # Appending, since whatever else is printed there must not be written over.
        with os_errors_reported(path), open(target, "ab") as device:
            device.write(text)
        return
    with write_whole(path, overwrite=overwrite) as file:
        file.write(text)


def _encodable(data: object) -> object:
    """Return the same data with texts that can be encoded in UTF-8."""
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode()
    if isinstance(data, dict):
        return {_encodable(key): _encodable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_encodable(value) for value in data]
    return data
