"""Jobs extrapolated to another number of stages or schedule take as long as generated ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from parallel_jobs import (
    GPIPE,
    GPT,
    Job,
    on_stages,
    recorded_on_stages,
    traffic,
)

from mpisim import engine
from mpisim.base.errors import InputError
from mpisim.experiment import load
from mpisim.extrapolate.parallel import extrapolate_parallel
from mpisim.extrapolate.parallel_order import SCHEDULES, Pass, PipelineOrder, orders_of
from mpisim.extrapolate.parallel_partition import StagePartition
from mpisim.extrapolate.parallel_stages import repartitioned
from mpisim.extrapolate.parallel_structure import find_structure
from mpisim.prediction.network import network_of
from mpisim.prediction.prepared import prepare
from mpisim.replay import TraceJob
from mpisim.simulate import Simulated, simulate
from mpisim.topo import find_cluster

UNTIED = GPT.replace('"gpt3-350m"', '"llama-7b"\nlayers = 16')
REDUCED = GPT.replace("zero = 1", "zero = 0")
OVERLAPPED = GPT.replace("zero = 1", "zero = 1\noverlap.p2p = true")
INTERLEAVED = GPT.replace("zero = 1", 'zero = 1\nvpp=2\npipeline.schedule = "interleaved"')
BATCHED = INTERLEAVED.replace("zero = 1", "zero = 1\noverlap.p2p = false")
SHALLOW = GPT.replace('"gpt3-350m"', '"gpt3-350m"\nlayers = 8')
SHALLOW_GPIPE = GPIPE.replace('"gpt3-350m"', '"gpt3-350m"\nlayers = 8')
SHALLOW_INTERLEAVED = INTERLEAVED.replace('"gpt3-350m"', '"gpt3-350m"\nlayers = 8')
"""Of the jobs on 16 GPUs: as many layers as stages and chunks need."""

GPIPE_IN_TURN = GPIPE.replace("overlap.p2p = true\n", "")
EXPERTS = GPT.replace('"gpt3-350m"', '"mixtral-8x7b"\nlayers = 8').replace("tp = 2", "ep = 2")
GATHERED_ONCE = f'{GPT.replace("zero = 1", "zero = 2")}[framework]\ndp_style = "fsdp"\n'

STAGES = {
    "tied": (GPT, 2, (3, 4, 6), 32),
    "two micro-batches": (GPT, 2, (8,), 16),
    "from four": (SHALLOW, 4, (2, 8), 64),
    "untied": (UNTIED, 2, (4,), 32),
    "untied from four": (UNTIED, 4, (2, 8), 32),
    "gradients reduced whole": (REDUCED, 2, (4, 8), 32),
    "DDP": (f'{REDUCED}[framework]\ndp_style = "ddp"\n', 2, (4,), 32),
    "GPipe": (GPIPE, 2, (3, 4), 32),
    "GPipe from four": (SHALLOW_GPIPE, 4, (2, 8), 64),
    "GPipe in batches": (GPIPE_IN_TURN, 2, (4,), 32),
    "interleaved": (INTERLEAVED, 2, (4,), 32),
    "interleaved from four": (SHALLOW_INTERLEAVED, 4, (2,), 64),
    "interleaved in batches": (BATCHED, 2, (4,), 32),
    "interleaved, untied": (
        INTERLEAVED.replace('"gpt3-350m"', '"llama-7b"\nlayers = 16'),
        *(2, (4,), 32),
    ),
    "FSDP that gathers once a step": (GATHERED_ONCE, 2, (4,), 32),
    "FSDP from four": (GATHERED_ONCE, 4, (2,), 64),
    "experts": (EXPERTS, 2, (4,), 64),
    "experts from four": (EXPERTS, 4, (2,), 64),
    "without tp": (GPT.replace("tp = 2", "tp = 1"), 2, (4,), 32),
    "pipeline inside": (GPT.replace("zero = 1", 'zero = 1\norder = "tp-cp-ep-pp-dp"'), 2, (4,), 32),
}
"""By name: experiment, pipeline stages recorded, stages extrapolated to, global batch."""


Recorded = Callable[[str, int, int], TraceJob]


@pytest.fixture(scope="module")
def recorded_once(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Text, stages and batch → the recorded job, made once for all tests that change it."""

    @cache
    def job(text: str, stages: int, batch: int) -> TraceJob:
        return recorded_on_stages(text, stages, tmp_path_factory.mktemp("job"), batch)

    return job


@pytest.mark.parametrize("name", STAGES)
def test_stages_are_as_generated(name: str, recorded_once: Recorded, tmp_path: Path) -> None:
    text, before, after, batch = STAGES[name]
    job = recorded_once(text, before, batch)
    for stages in after:
        found = extrapolate_parallel(
            job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), stages=stages
        )
        expected = on_stages(text, stages, tmp_path, batch)
        step = float(expected.run.step_time) / 1e12
        assert found.step == pytest.approx(step, rel=0.03), (stages, found.step / step)
        own, others = traffic(found.program), traffic(expected.run.program)
        assert own["SEND_RECV"] == others["SEND_RECV"]
        for operation in ("ALL_GATHER", "REDUCE_SCATTER"):  # shares are rounded
            assert own[operation] == pytest.approx(others[operation], rel=1e-6)
        # Gradients of norms, added up over tp, are taken to go with the layers.
        assert own["ALL_REDUCE"] == pytest.approx(others["ALL_REDUCE"], rel=2e-2)


CHANGED = {
    "1F1B to GPipe": (OVERLAPPED, GPIPE, 4, 64, {"schedule": "gpipe"}),
    "1F1B in batches to GPipe": (GPT, GPIPE, 4, 64, {"schedule": "gpipe"}),
    "... with messages in turn": (GPT, GPIPE_IN_TURN, 2, 32, {"schedule": "gpipe"}),
    "GPipe to 1F1B": (GPIPE, OVERLAPPED, 2, 32, {"schedule": "1f1b"}),
    "1F1B to interleaved": (OVERLAPPED, INTERLEAVED, 2, 32, {"schedule": "interleaved"}),
    "... in batches": (GPT, BATCHED, 2, 32, {"schedule": "interleaved", "chunks": 2}),
    "interleaved to 1F1B": (INTERLEAVED, OVERLAPPED, 4, 64, {"schedule": "1f1b"}),
    "more chunks": (INTERLEAVED, INTERLEAVED.replace("vpp=2", "vpp=3"), 2, 32, {"chunks": 3}),
}
"""Text as recorded and as changed, stages, samples of a step, and the change."""


@pytest.mark.parametrize("name", CHANGED)
def test_another_schedule_is_as_generated(
    name: str, recorded_once: Recorded, tmp_path: Path
) -> None:
    before, after, stages, batch, change = CHANGED[name]
    job = recorded_once(before, stages, batch)
    found = extrapolate_parallel(job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), **change)
    expected = on_stages(after, stages, tmp_path, batch)
    step = float(expected.run.step_time) / 1e12
    assert found.step == pytest.approx(step, rel=0.02), found.step / step
    assert traffic(found.program) == traffic(expected.run.program)


def test_the_recorded_schedule_changes_nothing(gpt: Job) -> None:
    found = extrapolate_parallel(
        gpt.job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), schedule="1f1b", stages=2
    )
    assert found.grown is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "gpipe", "chunks": 2}, "--vpp 2: the schedule is gpipe; interleaved has"),
        ({"schedule": "interleaved", "chunks": 5}, "dealt evenly to 5 chunks a stage; no number"),
        ({"schedule": "interleaved", "stages": 6}, "must be from the number of stages, 6, to the"),
        ({"chunks": 0}, "--vpp is 0; allowed is 1 or more"),
    ],
)
def test_schedules_that_cannot_be(change: dict[str, Any], said: str, gpt: Job) -> None:
    with pytest.raises(InputError) as error:
        extrapolate_parallel(gpt.job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), **change)
    assert said in str(error.value)


def test_stages_and_replicas(gpt: Job, tmp_path: Path) -> None:
    found = extrapolate_parallel(
        gpt.job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), stages=4, dp=4
    )
    path = tmp_path / "job.toml"
    path.write_text(gpt.text.replace("pp = 2", "pp = 4").format(batch=64, nodes=4))
    simulated: list[Simulated] = []
    simulate(prepare(load(str(path), ["framework.name=none"])[1]), simulated=simulated)
    expected = float(simulated[0].run.step_time) / 1e12
    assert found.structure.text == "tp=2,dp=2,pp=2"
    assert found.grown is not None
    assert [axis.size for axis in found.grown.axes] == [2, 4, 4]
    assert found.step == pytest.approx(expected, rel=0.03)


def test_layers_dealt_as_before_take_as_long(gpt: Job, megatron: TraceJob) -> None:
    for job, named, cluster in ((gpt.job, True, "dgx-h100"), (megatron, False, "a800-8gpu")):
        program = job.program
        structure = find_structure(program, job.traces.ranks, 8, named=named)
        again = repartitioned(StagePartition(program, structure, 2, 8, 0, {}))
        assert [len(t) for t in again.tables] == pytest.approx(
            [len(program.table_of(rank)) for rank in range(8)], abs=1
        )
        network = network_of(find_cluster(cluster), 1)
        step = engine.simulate(again, network=network).step_time
        assert step == pytest.approx(engine.simulate(program).step_time, rel=0.005)


def test_stages_of_megatron(megatron: TraceJob) -> None:
    """No measurement: shorter with more stages, until the two micro-batches do not fill them."""
    cluster = find_cluster("a800-8gpu")
    steps = []
    for stages in (3, 4, 6):
        found = extrapolate_parallel(megatron, MPI.COMM_SELF, cluster=cluster, stages=stages)
        assert found.recorded > found.step
        steps.append(found.step)
        said = " ".join(found.attributes["assumptions"])
        # 12 · 1024² numbers in fp32 on two ranks, with biases and norms.
        assert "24 layers" in said
        assert "24.0 MiB of gradients a layer" in said
    assert steps == sorted(steps, reverse=True)


@st.composite
def orders(draw: st.DrawFn) -> PipelineOrder:
    """Any order of a pipeline."""
    schedule, stages = draw(st.sampled_from(SCHEDULES)), draw(st.integers(2, 6))
    fused = draw(st.booleans())
    if schedule != "interleaved":
        return PipelineOrder(schedule, stages, draw(st.integers(1, 12)), 1, 0, fused)
    group = draw(st.integers(stages, stages + 2))
    micro_batches = group * draw(st.integers(1, 3))
    return PipelineOrder(schedule, stages, micro_batches, draw(st.integers(2, 3)), group, fused)


@settings(deadline=None)
@given(orders())
def test_every_message_is_received(order: PipelineOrder) -> None:
    units = [order.of(stage) for stage in range(order.stages)]
    sent: Counter[tuple[int, int, str]] = Counter()
    received: Counter[tuple[int, int, str]] = Counter()
    for stage, own in enumerate(units):
        passes = [each for each in own if isinstance(each, Pass)]
        assert len(set(passes)) == len(passes) == 2 * order.chunks * order.micro_batches
        messages = [each for unit in own if not isinstance(unit, Pass) for each in unit]
        for each in messages:
            what, way = each.token.split()
            if what == "send":
                sent[stage, each.peer, way] += 1
            else:
                received[each.peer, stage, way] += 1
        assert order in orders_of(order.stages, stage, len(messages), order.fused)
    assert sent == received
    assert sent[0, 1, "forward"] == order.chunks * order.micro_batches


@pytest.mark.parametrize(
    ("text", "stages", "said"),
    [
        (GPT, 5, "24 layers, which cannot be dealt evenly; allowed are 2, 3, 4, 6, 8, 12, 24"),
        (GPT, 1, "--pp is 1; allowed is 2 or more"),
        (
            GPT.replace("tp = 2", "tp = 1").replace(
                "zero = 1", 'zero = 1\npipeline.schedule = "zb-h1"'
            ),
            *(4, "of gradients of weights, as zero-bubble schedules have them"),
        ),
        (
            GPT.replace("zero = 1", 'zero = 1\npipeline.schedule = "dualpipe"'),
            *(4, "has dp2; layers are dealt anew in grids of tp, cp, ep, dp, pp alone"),
        ),
    ],
)
def test_stages_that_cannot_be_told(
    text: str, stages: int, said: str, recorded_once: Recorded
) -> None:
    job = recorded_once(text, 2, 32)
    with pytest.raises(InputError) as error:
        extrapolate_parallel(job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), stages=stages)
    assert said in str(error.value)


def test_a_job_without_a_pipeline_has_no_stages(llama: Job) -> None:
    with pytest.raises(InputError, match="has no pipeline"):
        extrapolate_parallel(llama.job, MPI.COMM_SELF, cluster=find_cluster("dgx-h100"), stages=2)
