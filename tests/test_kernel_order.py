"""Data dependencies between kernels, and recorded times against them."""

import json

import numpy as np
import pytest
from execution_traces import MM, Writer, tensor

from mpisim.traces.et import read_et
from mpisim.traces.kernel_order import check_dependencies, kernel_dependencies
from mpisim.traces.kineto_file import read_kineto
from mpisim.traces.link import link_traces

# Operator, begin of its launch, and its kernels as (stream, begin, end), in µs.
STORY = [
    ("aten::mm", 1, [(7, 10, 20), (7, 20, 24)]),
    ("aten::host", 4, []),
    ("aten::copy", 7, [(9, 24, 30)]),
    ("aten::other", 10, [(7, 24, 40)]),
    ("aten::join", 13, [(7, 40, 50)]),
]


@pytest.fixture
def story(tmp_path):
    """Two kernels, a CPU operator, a copy on stream 9 and what needs it on stream 7."""
    writer = Writer()
    writer.add("aten::mm", [tensor(1), tensor(2)], [tensor(3)], MM)
    writer.add("aten::host", [tensor(3), tensor(2)], [tensor(4)], MM)
    writer.add("aten::copy", [tensor(4), tensor(2)], [tensor(5)], MM)
    writer.add("aten::other", [tensor(1), tensor(2)], [tensor(6)], MM)
    writer.add("aten::join", [tensor(5), tensor(6)], [tensor(7)], MM)
    et = read_et(writer.write(tmp_path / "et.json"))
    events = []
    correlation = 0
    for k, (name, at, kernels) in enumerate(STORY):
        args = {"Record function id": k + 3}
        events.append(
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": name,
                "pid": 1,
                "tid": 1,
                "ts": at - 0.5,
                "dur": 2.5,
                "args": args,
            }
        )
        for i, (stream, begin, end) in enumerate(kernels):
            correlation += 1
            events.append(
                {
                    "ph": "X",
                    "cat": "cuda_runtime",
                    "name": "cudaLaunchKernel",
                    "pid": 1,
                    "tid": 1,
                    "ts": at + i * 0.5,
                    "dur": 0.25,
                    "args": {"correlation": correlation},
                }
            )
            events.append(
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": f"{name}_{i}",
                    "pid": 0,
                    "tid": stream,
                    "ts": begin,
                    "dur": end - begin,
                    "args": {"correlation": correlation, "stream": stream},
                }
            )
    path = tmp_path / "kineto.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read_kineto(path)
    return trace, kernel_dependencies(trace, et, link_traces(et, trace))


def test_dependencies_pass_through_operators_without_kernels(story):
    trace, found = story
    names = trace.device.name
    pairs = [(names[a], names[b]) for a, b in zip(found.source, found.target, strict=True)]
    # The last kernel of aten::mm stands for it. What aten::join reads on its own stream from
    # aten::other, and on the other from the copy.
    assert sorted(pairs) == [
        ("aten::copy_0", "aten::join_0"),
        ("aten::mm_1", "aten::copy_0"),
        ("aten::other_0", "aten::join_0"),
    ]
    assert int(found.crosses.sum()) == 2
    assert (found.attributed, found.total) == (5, 5)


def test_times_against_dependencies(story):
    trace, found = story
    begin, end = trace.device.begin, trace.device.end
    good = check_dependencies(found, begin, end)
    assert (good.total, good.satisfied, good.violated, good.worst) == (3, 3, 0, 0)
    # The copy ends at 30; if all of stream 7 ran 25 µs earlier, aten::join would begin at 15.
    early = np.where(trace.device.stream == trace.streams.index(7), 25_000_000, 0)
    bad = check_dependencies(found, begin - early, end - early)
    assert (bad.violated, bad.crossing, bad.crossing_violated) == (1, 2, 1)
    assert bad.worst == 15_000_000
    ((source, target, late),) = bad.examples
    assert (trace.device.name[source], trace.device.name[target]) == (
        "aten::copy_0",
        "aten::join_0",
    )
    assert late == 15_000_000
    assert "aten::join_0 begins 15.000 µs before the end of aten::copy_0" in bad.describe(
        trace.device.name
    )
    assert check_dependencies(found, begin - early, end - early, tolerance=late).violated == 0


def joined(folder, suffix=""):
    et = read_et(folder / f"et{suffix}.json.gz")
    trace = read_kineto(folder / f"kineto{suffix}.json.gz")
    return trace, kernel_dependencies(trace, et, link_traces(et, trace))


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_recorded_times_of_dlrm_respect_them(shared, rank):
    trace, found = joined(shared / "traces/dlrm_v100_8rank", f"_rank{rank}")
    begin, end = trace.device.begin, trace.device.end
    check = check_dependencies(found, begin, end)
    assert (check.total, check.crossing) == (202, 45)
    assert check.satisfied == check.total
    # In rank 1 the optimizer of the step before still runs: launched before the recording.
    assert found.total - found.attributed == (64 if rank == 1 else 0)
    # The check can fail: the same operations with the communication 2 ms later.
    nccl = np.array(["nccl" in name for name in trace.device.name])
    later = np.where(nccl, 2_000_000_000, 0)
    late = check_dependencies(found, begin + later, end + later)
    assert late.crossing_violated >= 5
    assert late.worst > 1_000_000_000


def test_recorded_times_of_vgg13_respect_them(shared):
    trace, found = joined(shared / "traces/triosim_vgg13_h100_1gpu")
    check = check_dependencies(found, trace.device.begin, trace.device.end)
    assert (check.total, check.satisfied, check.crossing) == (101, 101, 0)
    assert found.attributed == found.total == 325
    # Kernels that end a second later than they did end after everything that needs them.
    assert check_dependencies(found, trace.device.begin, trace.device.end + 10**12).violated == 101
