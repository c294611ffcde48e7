"""Trace file, plain or gzip → its bytes."""

from __future__ import annotations

import codecs
import zlib
from pathlib import Path
from typing import Annotated

import msgspec

from ..base.errors import TraceError

__all__ = ["Int64", "not_json", "open_text", "read_head"]

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A number in a file: others, which JSON may have of any length, are refused as it is decoded."""

_HEAD_BYTES = 1 << 20
"""Bytes of a file, and of what they unpack to, that count as its head."""
_MOST_UNPACKED = 200
"""Times its size that a file may unpack to: recorded traces are packed 3 to 110 times."""
_FREE = 64 << 20
"""Bytes that any file may unpack to."""


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
            raw = _unpacked(path, raw)
        except zlib.error as error:
            raise TraceError(f"{path}: damaged or truncated gzip file ({error})") from None
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if len(raw) < 64 and not raw.strip():
        raise TraceError(f"{path}: the file is empty")
    return raw


def not_json(text: bytes) -> str:
    """Text that is no JSON → what it is, for people; empty if that is not known.

    Examples
    --------
    >>> not_json(b"version https://git-lfs.github.com/spec/v1")
    "it is a pointer of Git LFS, in place of the file that 'git lfs pull' fetches"
    """
    head = text[:256].lstrip().lower()
    if head.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS, in place of the file that 'git lfs pull' fetches"
    if head.startswith((b"<!doctype html", b"<html")):
        return "it is a page of HTML, as a server sends it in place of a file"
    return ""


def _unpacked(path: Path, raw: bytes) -> bytes:
    """Return the contents of a gzip file, which may have several members."""
    most = max(_FREE, _MOST_UNPACKED * len(raw))
    parts: list[bytes] = []
    while raw[:2] == b"\x1f\x8b":
        member = zlib.decompressobj(wbits=31)
        parts.append(member.decompress(raw, most + 1))
        most -= len(parts[-1])
        if most < 0:
            raise TraceError(
                f"{path}: unpacks to more than {_MOST_UNPACKED} times its size; no trace does"
            )
        if not member.eof:
            raise TraceError(f"{path}: damaged or truncated gzip file (it ends too early)")
        raw = member.unused_data.lstrip(b"\0")
    if raw:
        raise TraceError(f"{path}: damaged gzip file ({len(raw)} bytes behind its end)")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_head(path: Path) -> bytes:
    """Return the first MiB of a file as `open_text` does.

    Raises
    ------
    TraceError
        If it cannot be read, or is damaged within that part.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_HEAD_BYTES)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from None
    if raw[:2] != b"\x1f\x8b":
        return raw.removeprefix(codecs.BOM_UTF8)
    try:
        head = zlib.decompressobj(wbits=31).decompress(raw, _HEAD_BYTES)
        return head.removeprefix(codecs.BOM_UTF8)
    except zlib.error as error:
        raise TraceError(f"{path}: damaged or truncated gzip file ({error})") from None
