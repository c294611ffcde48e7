"""Parts of several processes in one file: in order, whole or not at all, errors on all."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mpisim.base.errors import InputError, OutputError
from mpisim.export import parts as parts_module
from mpisim.export.parts import Part, write_parts

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.mpi_calls

HEAD = b"head\n"
N_PARTS = 7


def pieces(number: int) -> Iterator[bytes]:
    """The pieces of a part: some have none."""
    for piece in range(number % 4):
        yield f"part {number} piece {piece}\n".encode() * 1000


def all_parts(comm: Intracomm) -> list[tuple[int, Part]]:
    """Parts of processes in turn."""
    return [(n % comm.size, lambda n=n: pieces(n)) for n in range(N_PARTS)]  # type: ignore[misc]


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["whole", "whole.gz"])
def test_in_order(comm: Intracomm, shared_folder: Path, name: str) -> None:
    write_parts(shared_folder / name, lambda: [HEAD], all_parts(comm), comm)
    if comm.rank == 0:
        raw = (shared_folder / name).read_bytes()
        text = gzip.decompress(raw) if name.endswith(".gz") else raw
        assert text == HEAD + b"".join(p for n in range(N_PARTS) for p in pieces(n))
        assert len(list(shared_folder.iterdir())) == 1
    comm.barrier()
    with pytest.raises(OutputError, match="exists already"):
        write_parts(shared_folder / name, lambda: [HEAD], all_parts(comm), comm)
    write_parts(shared_folder / name, list, [], comm, overwrite=True)
    if comm.rank == 0:
        raw = (shared_folder / name).read_bytes()
        assert (gzip.decompress(raw) if name.endswith(".gz") else raw) == b""
    comm.barrier()


@pytest.mark.mpi
@pytest.mark.parametrize("bytes_", [0, 3, 60_000])
@pytest.mark.parametrize("name", ["whole", "whole.gz"])
def test_a_full_disk(
    comm: Intracomm,
    shared_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    bytes_: int,
) -> None:
    """The others, which only send, are not left waiting."""

    class Full:
        """A file on a disk with so many bytes left."""

        def __init__(self, file: Any) -> None:
            self.file, self.left = file, bytes_ if name == "whole" else bytes_ // 2_000

        def write(self, data: bytes) -> int:
            self.left -= len(data)
            if self.left < 0:
                raise OSError(28, "No space left on device")
            return int(self.file.write(data))

        def flush(self) -> None:
            self.file.flush()

    whole = parts_module.write_whole

    def on_a_full_disk(*args: Any, **more: Any) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def opened() -> Iterator[Any]:
            with whole(*args, **more) as file:
                yield Full(file)

        return opened()

    monkeypatch.setattr(parts_module, "write_whole", on_a_full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        write_parts(shared_folder / name, lambda: [HEAD], all_parts(comm), comm)
    comm.barrier()
    assert list(shared_folder.iterdir()) == []
    comm.barrier()


@pytest.mark.mpi
@pytest.mark.parametrize("bad", range(3))
def test_a_part_that_cannot_be_made(comm: Intracomm, shared_folder: Path, bad: int) -> None:
    def broken() -> Iterator[bytes]:
        yield b"some"
        raise InputError("row 3 is wrong")

    parts = all_parts(comm)
    parts[bad] = parts[bad][0], broken
    with pytest.raises(InputError, match="row 3 is wrong"):
        write_parts(shared_folder / "whole", lambda: [HEAD], parts, comm)
    comm.barrier()
    assert list(shared_folder.iterdir()) == []
    comm.barrier()
