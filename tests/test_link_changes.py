"""Many changes of links: which links patterns fit, and what each change does among the others."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pytest
from fabrics import cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import TWO_NODES
from test_unused_network_keys import named, run

from mpisim.prediction import unused_network_keys
from mpisim.topo.changes import apply_changes, without_each_change
from mpisim.topo.link_patterns import EndPatterns, LinkPatterns

# Few letters, so that patterns fit; among them a separator and signs of regular expressions.
NAMES = st.lists(st.text("ab>[]\n.", max_size=6), max_size=12)
PATTERNS = st.lists(st.text("ab>[]\n.*?", max_size=7), min_size=1, max_size=12)


@settings(max_examples=400)
@given(NAMES, PATTERNS)
def test_patterns_fit_what_they_fit_name_by_name(names: list[str], patterns: list[str]) -> None:
    found = LinkPatterns(names)
    for pattern in patterns:
        literal = pattern.replace("[", "[[]")
        expected = [i for i, name in enumerate(names) if fnmatchcase(name, literal)]
        assert found.matching(pattern).tolist() == expected


@settings(max_examples=300)
@given(
    nodes=st.lists(st.text("ab>-.", max_size=4), min_size=1, max_size=8),
    ends=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=12),
    labels=st.dictionaries(st.integers(0, 11), st.text("ab->#", max_size=6), max_size=3),
    patterns=st.lists(
        st.builds(
            "{}{}{}".format,
            st.text("ab>-.*?", max_size=4),
            st.sampled_from(["->", "*"]),
            st.text("ab>-.*?", max_size=4),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_patterns_fit_ends_as_they_fit_names(
    nodes: list[str],
    ends: list[tuple[int, int]],
    labels: dict[int, str],
    patterns: list[str],
) -> None:
    pairs = np.array(ends, np.int32).reshape(-1, 2) % len(nodes)
    labels = {link: own for link, own in labels.items() if link < len(pairs)}
    names = [labels.get(i, f"{nodes[a]}->{nodes[b]}") for i, (a, b) in enumerate(pairs.tolist())]
    found, plain = EndPatterns(nodes, *pairs.T.copy(), labels), LinkPatterns(names)
    for pattern in patterns:
        assert found.matching(pattern).tolist() == plain.matching(pattern).tolist()


FABRIC = cluster(kind="fat-tree", leaf=2, spines=2, ecmp="ecmp").topology(4)
CHANGES = st.dictionaries(
    st.builds(
        "links.{}.{}".format,
        st.sampled_from(
            ["leaf0->spine0", "leaf0->*", "*->spine1", "leaf?->spine?", "*", "node0.*->*"]
        ),
        st.sampled_from(["bandwidth", "latency"]),
    ),
    st.sampled_from(["50 %", "1 x", "2 x", "0.3 x", "new"]),
    min_size=1,
)
CUTS = st.dictionaries(
    st.sampled_from(["links.leaf0->spine0", "links.leaf?->spine0", "links.leaf1->spine0"]),
    st.just("cut"),
)


@settings(max_examples=60, deadline=None)
@given(CHANGES, CUTS, st.randoms())
def test_a_topology_without_each_change(
    changes: dict[str, str], cuts: dict[str, str], random: object
) -> None:
    values = {"bandwidth": "20 GB/s", "latency": "2 us"}
    named = {key: values[key.rpartition(".")[2]] if v == "new" else v for key, v in changes.items()}
    entries = list((named | cuts).items())
    random.shuffle(entries)  # type: ignore[attr-defined]
    given = dict(entries)
    whole = apply_changes(FABRIC, given)
    for name, without in without_each_change(FABRIC, given).items():
        other = apply_changes(FABRIC, {key: v for key, v in given.items() if key != name})
        if without is None:
            assert other.n_links > whole.n_links
            continue
        assert other.link_names == whole.link_names
        differ = (other.bandwidth != whole.bandwidth) | (other.latency != whole.latency)
        np.testing.assert_array_equal(without.links, np.flatnonzero(differ))
        np.testing.assert_array_equal(without.bandwidth, other.bandwidth[differ])


NICS = {
    f"links.node{node}.nic{nic}->*.{key}": value
    for node in range(2)
    for nic, key, value in [
        (0, "bandwidth", "50 %"),
        (1, "bandwidth", "100 %"),
        (2, "latency", "9 us"),
        (3, "bandwidth", "49.999 GB/s"),
    ]
} | {"links.node0.gpu3->node0.pcie*.bandwidth": "99 %"}


@pytest.mark.parametrize(
    ("choices", "shared"),
    [
        (["plan.pp=2", "plan.dp=2"], True),
        (["plan.pp=2", "plan.dp=2", "network.contention=false"], False),
        ([], False),
    ],
)
def test_what_is_known_without_a_network_is_what_networks_say(
    choices: list[str], shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = choices + [f"network.changes.'{key}'={value}" for key, value in NICS.items()]
    known: dict[Any, bool] = {}
    look = unused_network_keys._effects_of_changes
    monkeypatch.setattr(
        unused_network_keys, "_effects_of_changes", lambda *_: known.update(look(*_)) or dict(known)
    )
    said = named(run(TWO_NODES, *changes))
    assert any(known.values()) == shared
    assert not all(known.values())
    monkeypatch.setattr(unused_network_keys, "_effects_of_changes", lambda *_: {})
    assert named(run(TWO_NODES, *changes)) == said
