"""Failing together and showing progress."""

import pickle
import re
import threading
import time

import pytest

from mpisim.base import errors
from mpisim.base.errors import InputError, MatchError, MpisimError, TraceError, nearest
from mpisim.mpi import phases
from mpisim.mpi.parallel import collective_errors, progress

pytestmark = pytest.mark.mpi_calls


class FieldError(MatchError):
    """An error whose constructor takes something other than its message."""

    def __init__(self, communicator, position):
        super().__init__(f"communicator {communicator}, operation {position}")
        self.position = position


@pytest.mark.mpi
def test_collective_errors_passes_when_no_rank_fails(comm):
    with collective_errors(comm):
        mine = comm.rank + 1
    assert comm.allreduce(mine) == comm.size * (comm.size + 1) // 2


@pytest.mark.mpi
def test_collective_errors_raises_the_same_error_on_every_rank(comm):
    last = comm.size - 1
    with pytest.raises(TraceError, match=f"^file of rank {last}$"), collective_errors(comm):
        if comm.rank == last:
            raise TraceError(f"file of rank {last}")
    assert comm.allreduce(1) == comm.size  # nobody was left behind


@pytest.mark.mpi
def test_collective_errors_raises_the_error_of_the_lowest_rank(comm):
    first = min(1, comm.size - 1)  # rank 0 is well, unless it is alone
    with pytest.raises(InputError, match=f"^rank {first}$"), collective_errors(comm):
        if comm.rank >= first:
            raise InputError(f"rank {comm.rank}")


@pytest.mark.mpi
def test_collective_errors_keeps_class_fields_and_exit_code(comm):
    with pytest.raises(FieldError) as caught, collective_errors(comm):
        if comm.rank == comm.size - 1:
            raise FieldError("dp", 7)
    assert caught.value.position == 7
    assert caught.value.exit_code == 2
    assert str(caught.value) == "communicator dp, operation 7"


@pytest.mark.mpi
def test_collective_errors_lets_bugs_through_at_once(comm):
    with pytest.raises(ZeroDivisionError), collective_errors(comm):
        raise ZeroDivisionError


@pytest.mark.mpi
def test_progress_is_drawn_by_rank_0_and_wiped(comm, capsys, monkeypatch):
    monkeypatch.setenv("MPISIM_PROGRESS", "1")
    with progress(comm, "replay", 200, interval=0.0) as update:
        update(50)
        update(50, "best 3 s")
    written = capsys.readouterr().err
    if comm.rank == 0:
        assert written.startswith("\rreplay: 25 %")
        assert ", best 3 s" in written
        assert written.endswith(" \r")
    else:
        assert written == ""


def test_the_line_moves_while_nothing_is_reported(capsys, monkeypatch):
    """All of a run is one line: the innermost phase, its share, and the time of all."""
    monkeypatch.setenv("MPISIM_PROGRESS", "1")

    class Alone:
        rank = 0

    written = ""

    def wait_for(text):
        nonlocal written
        limit = time.monotonic() + 30
        while text not in written and time.monotonic() < limit:
            time.sleep(0.01)
            written += capsys.readouterr().err
        assert text in written

    with progress(Alone(), "generating", interval=0.01):
        wait_for("generating, 0 s")
        with progress(Alone(), "simulating", 10) as update, progress(Alone(), "", 3) as other:
            update(6)
            other(1)  # has no name: shown as part of what is around it
            wait_for("simulating: 60 %, ")
        written = ""
        wait_for("generating, ")
    written += capsys.readouterr().err
    assert written.endswith(" \r")
    assert "left" not in written
    assert not [thread for thread in threading.enumerate() if "drawing" in thread.name]


def test_progress_is_silent_without_a_terminal(capsys, monkeypatch):
    monkeypatch.delenv("MPISIM_PROGRESS", raising=False)

    class Alone:
        rank = 0

    with progress(Alone(), "replay", 2, interval=0.0) as update:
        update(1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("setting", [None, "0"])
def test_a_log_has_a_line_a_minute(capsys, monkeypatch, setting):
    """Where standard error is no terminal: whole lines, the outermost share and what is in it."""
    if setting is None:
        monkeypatch.delenv("MPISIM_PROGRESS", raising=False)
    else:
        monkeypatch.setenv("MPISIM_PROGRESS", setting)
    monkeypatch.setattr(phases, "LOG_INTERVAL", 0.05)
    with (
        progress(None, "rows", 4) as update,
        progress(None, "reading"),
    ):
        update(1)
        time.sleep(0.4)
    lines = capsys.readouterr().err.splitlines()
    if setting == "0":
        assert lines == []
        return
    assert len(lines) >= 1
    for line in lines:
        assert re.fullmatch(
            r"mpisim: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d rows: (0|25) % \(reading\), \d+ s", line
        )


def test_time_left_is_said_where_shares_are_steady():
    for steady in (True, False):
        phase = phases.Phase("rows", 100, steady, 0.0)
        shown = phases.Phases()
        shown.enter(phase, "", 0.5)
        for done in range(1, 41):
            phase.update(done, 10.0 * done)
        said = ", about 10 min left" if steady else ""
        assert shown.text(400.0) == f"rows: 40 %, 7 min{said}"
        shown.leave(phase)


def test_a_block_that_prints_has_the_terminal_to_itself(capsys, monkeypatch):
    monkeypatch.setenv("MPISIM_PROGRESS", "1")
    with progress(None, "rows", 4, interval=0.0) as update:
        update(1)
        with phases.phases.silent():
            assert capsys.readouterr().err.endswith("\r")
            time.sleep(0.2)
            assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name[0].isupper()])
def test_errors_pickle(name):
    error = pickle.loads(pickle.dumps(getattr(errors, name)("row 3: bytes is -1")))
    assert isinstance(error, MpisimError)
    assert type(error).__name__ == name
    assert str(error) == "row 3: bytes is -1"


def test_nearest_suggests_only_what_is_close():
    assert nearest("all_reduc", ["all_reduce", "broadcast"]) == " (did you mean 'all_reduce'?)"
    assert nearest("gather", ["broadcast"]) == ""
    assert nearest("FP8", ["bf16", "fp8"]) == " (did you mean 'fp8'?)"
