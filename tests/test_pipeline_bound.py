"""Bounds of pipelines: closed forms of their schedules, and longest paths through their passes."""

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.program import Phase
from mpisim.schedules import Pipeline, pipeline
from mpisim.search.pipeline_bound import PassTimes, pipeline_time

FORWARD, BACKWARD = 10, 20
PART = PassTimes(FORWARD, BACKWARD, 8, 0, 0)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 4, 16])
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_equal_stages_wait_for_the_bubble(name: str, stages: int, micro_batches: int) -> None:
    """(m + p - 1) (F + B): the bubble of GPipe and 1F1B."""
    found = pipeline_time(pipeline(name, stages, micro_batches), [PART] * stages, 0, overlap=False)
    assert found == (micro_batches + stages - 1) * (FORWARD + BACKWARD)


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (4, 3), (8, 2)])
def test_chunks_divide_the_bubble(stages: int, chunks: int) -> None:
    """(m v + p - 1) (F + B) of a chunk (arXiv:2104.04473, section 2.2)."""
    micro_batches = 4 * stages
    laid = pipeline("interleaved", stages, micro_batches, chunks)
    found = pipeline_time(laid, [PART] * laid.parts, 0, overlap=True)
    assert found == (micro_batches * chunks + stages - 1) * (FORWARD + BACKWARD)


def test_a_message_is_waited_for_at_either_end() -> None:
    """One micro-batch: every boundary is crossed forward and back."""
    for overlap in (False, True):
        found = pipeline_time(pipeline("1f1b", 4, 1), [PART] * 4, 5, overlap=overlap)
        assert found == 4 * (FORWARD + BACKWARD) + 6 * 5


def test_a_receive_is_posted_behind_the_pass_before() -> None:
    laid = pipeline("gpipe", 2, 2)
    fast, slow = PassTimes(1, 1, 0, 0, 0), PassTimes(100, 1, 0, 0, 0)
    backwards = 1 + 7 + 1 + 7 + 1  # one on the last stage, two on the first, a message before each
    for overlap in (False, True):
        found = pipeline_time(laid, [fast, slow], 7, overlap=overlap)
        assert found == 1 + 7 + 100 + 7 + 100 + backwards
    # With overlap behind its last kernel alone: beside the communications after that.
    slow = slow._replace(after_forward=5)
    found = pipeline_time(laid, [fast, slow], 7, overlap=True)
    assert found == 1 + 7 + 100 + 2 + 100 + backwards


def longest_path(laid: Pipeline, parts: list[PassTimes], message: int) -> int:
    """The same without overlap, by the longest path through a graph of passes."""
    graph = networkx.DiGraph()
    graph.add_node("end")
    for stage, actions in enumerate(laid.actions):
        before = None
        for action in actions:
            part = action.chunk * laid.stages + stage
            times = parts[part]
            backward = times.backward - (times.weights if action.split else 0)
            lasts = {
                Phase.FORWARD: times.forward,
                Phase.BACKWARD: backward,
                Phase.WEIGHT: times.weights,
            }[action.phase]
            node = (action.phase.name, part, action.micro_batch)
            begin = ("begin", *node)
            graph.add_edge(begin, node, time=lasts)
            graph.add_edge(node, "end", time=0)
            step = {Phase.FORWARD: -1, Phase.BACKWARD: 1}.get(action.phase, 0)
            received = step and 0 <= part + step < laid.parts
            late = message if received and laid.stages > 1 else 0
            if received:
                source = (action.phase.name, part + step, action.micro_batch)
                graph.add_edge(source, begin, time=late)
            if before is not None:
                graph.add_edge(before, begin, time=late)
            before = node
    return int(networkx.dag_longest_path_length(graph, weight="time"))


@given(
    st.sampled_from([("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("zb-h1", 1)]),
    st.sampled_from([2, 3, 4]),
    st.integers(1, 3),
    st.integers(0, 9),
    st.data(),
)
def test_times_are_longest_paths(
    schedule: tuple[str, int], stages: int, rounds: int, message: int, data: st.DataObject
) -> None:
    name, chunks = schedule
    laid = pipeline(name, stages, stages * rounds, chunks)
    lengths = st.integers(1, 50)
    parts = [
        PassTimes(data.draw(lengths), 10 + data.draw(lengths), data.draw(st.integers(0, 10)), 0, 0)
        for _ in range(laid.parts)
    ]
    found = pipeline_time(laid, parts, message, overlap=False)
    assert found == longest_path(laid, parts, message)
