"""Latencies and gaps of a device, and starts that nothing known explains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traces import US, HandMade

from mpisim.traces.timing import DeviceTiming, explain_late_starts, measure_timing
from mpisim.traces.waits import Inference, infer_waits


def timing(made: HandMade, folder: Path, explain: bool = False) -> tuple[DeviceTiming, Inference]:
    trace, calls = made.read(folder)
    found = infer_waits(trace, calls)
    measure = explain_late_starts if explain else measure_timing
    return measure(trace, calls, found), found


def test_bound_by_the_host(tmp_path: Path) -> None:
    made = HandMade()
    for at in (0, 100, 200):
        made.launch(at, at + 5, at + 9, at + 20)
    found, _ = timing(made, tmp_path)
    # Each starts 9 µs after its call, long after the one before has ended.
    assert found.latency.tolist() == [9 * US] * 3
    assert found.previous.tolist() == [-1, 0, 1]
    assert found.call.tolist() == [0, 1, 2]
    assert found.excess.tolist() == [0, 0, 0]


def test_bound_by_the_stream(tmp_path: Path) -> None:
    made = HandMade()
    made.launch(0, 5, 9, 500)
    made.launch(10, 15, 502, 600)
    made.launch(20, 25, 602, 700)
    made.launch(30, 35, 705, 800)
    found, _ = timing(made, tmp_path)
    # Gaps of 2, 2 and 5 µs: the usual one is 2, and the last keeps its own.
    assert found.gap[1:].tolist() == [2 * US, 2 * US, 5 * US]
    assert found.latency[1:].tolist() == [9 * US] * 3
    assert found.excess.tolist() == [0] * 4


def test_clocks_of_cpu_and_gpu_differ(tmp_path: Path) -> None:
    made = HandMade()
    for at in (100, 200, 300):
        made.launch(at, at + 5, at - 30, at - 10)
    found, _ = timing(made, tmp_path)
    assert found.latency.tolist() == [-30 * US] * 3


def test_long_calls_are_latency(tmp_path: Path) -> None:
    # The call itself staged the copy for 80 µs: no unexplained start.
    made = HandMade()
    made.launch(0, 5, 9, 20)
    made.launch(100, 105, 109, 120)
    made.launch(200, 285, 290, 300)
    found, _ = timing(made, tmp_path)
    assert found.latency.tolist() == [9 * US, 9 * US, 90 * US]
    assert found.excess.tolist() == [0, 0, 0]


def test_unexplained_start(tmp_path: Path) -> None:
    made = HandMade()
    for at in (0, 100, 200):
        made.launch(at, at + 5, at + 9, at + 20)
    made.launch(300, 305, 409, 420)
    found, _ = timing(made, tmp_path)
    # 109 µs after its call, of which 9 are usual and 25 allowed.
    assert found.latency[3] == (9 + 25) * US
    assert found.excess[3] == (100 - 25) * US


def late_after_side(**side: Any) -> HandMade:
    """A kernel that starts when another stream's has ended, though launched long before."""
    made = HandMade()
    for at in (0, 100):
        made.launch(at, at + 5, at + 9, at + 20)
    made.launch(200, 205, 209, 900, stream=20, name="side", **side)
    return made


def test_late_start_by_an_event_wait(tmp_path: Path) -> None:
    made = late_after_side()
    made.call("cudaStreamWaitEvent", 220, 221)
    # The rules give the wait to the next launch; the later one on the first stream is the one.
    made.launch(230, 235, 239, 245, stream=24, name="other")
    made.launch(240, 245, 903, 910, stream=7, name="late")
    found, inferred = timing(made, tmp_path, explain=True)
    assert inferred.counts["late start: event wait"] == 1
    # Operations in order of begin: the late one waits for the side stream's.
    assert inferred.waits[4] == [2]
    assert found.excess.tolist() == [0] * 5


def test_late_start_behind_a_full_device(tmp_path: Path) -> None:
    made = late_after_side(**{"blocks per SM": 12.0})
    made.launch(240, 245, 905, 910, stream=7, name="late")
    found, inferred = timing(made, tmp_path, explain=True)
    assert inferred.counts["late start: occupied device"] == 1
    assert inferred.waits[3] == [2]
    assert found.excess.tolist() == [0] * 4


def test_late_start_stays_unknown(tmp_path: Path) -> None:
    # The side kernel leaves room for others, and no event wait was called.
    made = late_after_side(**{"blocks per SM": 0.1})
    made.launch(240, 245, 905, 910, stream=7, name="late")
    found, inferred = timing(made, tmp_path, explain=True)
    assert inferred.waits[3] == []
    assert found.excess[3] > 600 * US
