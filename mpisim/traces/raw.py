"""The bytes of a trace file, plain or gzip."""

from __future__ import annotations

import codecs
import gzip
import zlib
from pathlib import Path

from ..errors import TraceError

__all__ = ["open_text", "read_head"]

_HEAD = 1 << 20


def open_text(path: Path) -> bytes:
    """Return the bytes of a file, decompressed if it is gzip, without a byte order mark.

    Raises
    ------
    TraceError
        If it cannot be read, is empty, or is a truncated or damaged gzip file.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from None
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TraceError(f"{path}: damaged or truncated gzip file ({error})") from None
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if len(raw) < 64 and not raw.strip():
        raise TraceError(f"{path}: the file is empty")
    return raw


def read_head(path: Path) -> bytes:
    """Return the first MiB of a file as `open_text` does.

    Raises
    ------
    TraceError
        If it cannot be read, or is damaged within that part.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_HEAD)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from None
    if raw[:2] != b"\x1f\x8b":
        return raw.removeprefix(codecs.BOM_UTF8)
    try:
        head = zlib.decompressobj(wbits=31).decompress(raw, _HEAD)
        return head.removeprefix(codecs.BOM_UTF8)
    except zlib.error as error:
        raise TraceError(f"{path}: damaged or truncated gzip file ({error})") from None
