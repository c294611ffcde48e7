"""Parts of a file that processes make → one file, in order, whole or not at all.

A part is a generator of pieces: process 0 writes each piece as it comes, so that no process ever
holds more of the file than a piece. A name that ends in ``.gz`` is compressed on the way.
"""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..base.errors import MpisimError
from ..base.files import os_errors_reported, write_whole
from ..mpi.parallel import collective_errors

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

__all__ = ["Part", "write_parts"]

Part = Callable[[], Iterable[bytes]]
"""Makes the pieces of a part."""

COMPRESSION_LEVEL = 4
"""Of compression: higher ones take several times as long for a few percent."""


def write_parts(
    path: str | Path,
    head: Part,
    parts: Iterable[tuple[int, Part]],
    comm: Intracomm,
    *,
    overwrite: bool = False,
) -> None:
    """Write a file: a head, and one part after the other. **Collective.**

    Parameters
    ----------
    path : str or Path
        On process 0.
    head : callable
        Makes the beginning, on process 0.
    parts : iterable of (int, callable)
        In order and of equal length on all processes: the process that makes the part, and what
        makes it there.
    comm : mpi4py.MPI.Intracomm
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    OutputError
        If it cannot be written; nothing is left behind.
    """
    with collective_errors(comm):
        if comm.rank == 0:
            _write(path, head, list(parts), comm, overwrite)
        else:
            for maker, part in parts:
                if maker == comm.rank:
                    _send(part, comm)


def _write(
    path: str | Path,
    head: Part,
    parts: Sequence[tuple[int, Part]],
    comm: Intracomm,
    overwrite: bool,
) -> None:
    """Write the file on process 0, which takes all that others send even where it fails."""
    received = _Received(comm)
    left = list(parts)
    try:
        with write_whole(path, overwrite=overwrite) as file, _packed(path, file) as target:
            for piece in head():
                target.write(piece)
            while left:
                maker, part = left[0]
                for piece in received.pieces(maker) if maker != comm.rank else part():
                    target.write(piece)
                del left[0]
    except MpisimError:
        # The others only send: what is not received here they would wait with for ever.
        for maker, _ in left:
            if maker != comm.rank:
                with contextlib.suppress(MpisimError):
                    for _ in received.pieces(maker):
                        pass
        raise


def _send(part: Part, comm: Intracomm) -> None:
    """Send the pieces of a part to process 0, or the error that ends them."""
    try:
        for piece in part():
            comm.send(piece, dest=0)
    except MpisimError as error:
        comm.send(error, dest=0)
        raise
    comm.send(None, dest=0)


class _Received:
    """Receiver of the parts that other processes send by `_send`, in order."""

    def __init__(self, comm: Intracomm) -> None:
        self._comm = comm
        self._ended: set[int] = set()  # those that failed, which send nothing more

    def pieces(self, maker: int) -> Iterator[bytes]:
        """Yield the pieces of the next part of a process, or those that are left of it.

        Raises
        ------
        MpisimError
            What ended the part there.
        """
        if maker in self._ended:
            return
        while (piece := self._comm.recv(source=maker)) is not None:
            if isinstance(piece, MpisimError):
                self._ended.add(maker)
                raise piece
            yield piece


@contextlib.contextmanager
def _packed(path: str | Path, file: BinaryIO) -> Iterator[BinaryIO]:
    """Yield the file, or what compresses into it."""
    if not str(path).endswith(".gz"):
        yield file
        return
    with os_errors_reported(path):
        # Without name and time: equal files for equal runs.
        packed = gzip.GzipFile("", "wb", COMPRESSION_LEVEL, file, mtime=0)
        try:
            yield packed  # type: ignore[misc]
            packed.close()
        except BaseException:
            packed.fileobj = None  # type: ignore[assignment]  # closed already: nothing more is to be written to it
            raise
