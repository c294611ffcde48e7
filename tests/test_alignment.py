"""Longest common subsequences against the textbook's table."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mpisim.traces.link import best_offset, common_subsequence

lists = st.lists(st.sampled_from("abc"), max_size=40)


def textbook(a, b):
    row = [0] * (len(b) + 1)
    for x in a:
        new = [0]
        for j, y in enumerate(b):
            new.append(row[j] + 1 if x == y else max(row[j + 1], new[j]))
        row = new
    return row[-1]


@given(lists, lists, st.sampled_from([0, 50, 1 << 30]))
def test_it_is_common_ascending_and_longest(a, b, most_bits):
    pairs = common_subsequence(a, b, most_bits)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(p < q and r < s for (p, r), (q, s) in pairwise(pairs))
    assert len(pairs) == textbook(a, b)


def test_a_list_with_some_items_missing():
    whole = [k % 17 for k in range(2000)]
    some = [item for k, item in enumerate(whole) if k % 25]
    assert len(common_subsequence(whole, some)) == len(some)


def test_best_offset():
    assert best_offset("cde", "abcdefg") == 2
    assert best_offset("abc", "bcd") == -1
    assert best_offset("xyz", "abc") == -3  # nothing agrees anywhere
