"""What DeepSeek-V3 does beyond others: groups of experts, DualPipe's pairs, and what is kept."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_step import waits
from toys import Times, layout
from transformers import lines, model, network, operator, plan

from mpisim.base.errors import InputError
from mpisim.kernels.operations import Elementwise
from mpisim.memory.states import rates
from mpisim.program import Kind, Operation, check_matching
from mpisim.workloads import training_step
from mpisim.workloads.operators import Communicate, Compute, Layer, LayerStack, Operator
from mpisim.workloads.transformer.destinations import (
    expected_destinations,
    round_robin_destinations,
)

SIZES: dict[str, Any] = {"layers": 2, "hidden": 16, "heads": 4, "seq_len": 8, "vocab": 256}
MLA: dict[str, Any] = {
    "attention": "mla",
    "q_lora_rank": 8,
    "kv_lora_rank": 4,
    "qk_nope_head_size": 4,
    "qk_rope_head_size": 2,
    "v_head_size": 4,
}
MIXED = model(
    "moe", **SIZES, **MLA, experts=8, topk=2, moe_ffn_hidden=32, shared_experts=1, dense_layers=1
)
TOKENS = 8


# --- routing limited to groups of experts ---------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    groups=st.sampled_from([1, 2, 4]),
    chosen=st.integers(1, 4),
    topk=st.integers(1, 4),
    parts=st.sampled_from([1, 2, 4, 8]),
)
def test_places_are_those_of_all_choices(groups: int, chosen: int, topk: int, parts: int) -> None:
    experts = 8
    assume(chosen <= groups and topk <= chosen * experts // groups)
    size, part = experts // groups, experts // parts
    found = []
    for some in itertools.combinations(range(groups), chosen):
        eligible = [e for group in some for e in range(group * size, (group + 1) * size)]
        choices = list(itertools.combinations(eligible, topk))
        found.append(sum(len({e // part for e in each}) for each in choices) / len(choices))
    expected = sum(found) / len(found)
    assert expected_destinations(experts, topk, parts, groups, chosen) == pytest.approx(expected)


def test_a_token_reaches_no_more_nodes_than_it_chooses_groups() -> None:
    # DeepSeek-V3: 8 of 256 experts on 8 nodes, from 4 of them at most.
    assert expected_destinations(256, 8, 8) == pytest.approx(8 * (1 - (7 / 8) ** 8), rel=0.02)
    assert expected_destinations(256, 8, 8, groups=8, chosen=4) == pytest.approx(
        4 * (1 - (3 / 4) ** 8), rel=0.02
    )


@given(ranks=st.sampled_from([1, 2, 4, 8]), each=st.integers(1, 6), topk=st.integers(1, 6))
def test_experts_in_turn_are_on_few_ranks(ranks: int, each: int, topk: int) -> None:
    experts = ranks * each
    assume(topk <= experts)
    places = [i % experts // each for i in range(experts * topk)]
    tokens = [places[i : i + topk] for i in range(0, len(places), topk)]
    expected = sum(len(set(token)) for token in tokens) / len(tokens)
    assert round_robin_destinations(experts, topk, ranks) == pytest.approx(expected)


@pytest.mark.parametrize("dispatcher", ["flex", "hybrid-ep"])
def test_tokens_of_experts_in_turn_travel_once(dispatcher: str) -> None:
    mixed = model("moe", **SIZES, experts=8, topk=2, moe_ffn_hidden=32)
    sent = {}
    for balance in ("free", "round-robin"):
        keys = {"ep": 4, "dp": 4, "etp": 1, "moe_dispatcher": dispatcher, "moe_balance": balance}
        found = operator(network(mixed, plan(**keys)), "combine")
        (sent[balance],) = [each.bytes for each in found.forward if isinstance(each, Communicate)]
    # Two experts of a token on one of four ranks; freely chosen they are on 4 × (1 - 6 × 5 / 56).
    assert sent["free"] / sent["round-robin"] == pytest.approx(4 * (1 - 30 / 56), rel=0.1)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"expert_groups": 3}, "experts is 8, which is not a multiple of expert_groups = 3"),
        ({"expert_groups": 2, "topk_groups": 3}, "topk_groups is 3, more than expert_groups = 2"),
        ({"expert_groups": 8, "topk_groups": 1}, "topk is 2, more than the 1 experts"),
    ],
)
def test_groups_that_do_not_come_out(keys: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model("moe", **SIZES, experts=8, topk=2, **keys)


# --- DualPipe -------------------------------------------------------------------------------------


def test_pairs_take_turns_also_where_exchanges_have_tokens() -> None:
    """Shared experts beside the exchange of one's tokens, then the other's kernels."""

    def mixture(name: str) -> Layer:
        steps = (
            Compute(f"{name} router", Elementwise(10)),
            Communicate(f"{name} dispatch", Operation.ALL_TO_ALL, "ep", 30, token="sent"),
            Compute(f"{name} shared", Elementwise(10)),
            Compute(f"{name} experts", Elementwise(10), after=("sent",)),
        )
        # A second operator: what ends one does not stop turns in the next.
        twice = (Operator(name, steps, steps), Operator(name, steps, steps))
        return Layer(name, twice, "block", output=16, checkpoint=10)

    net = LayerStack((mixture("a"), mixture("b")), 6, 1)
    keys = {"pp": 2, "ep": 2, "schedule": "dualpipe", "global_batch": 8, "zero": 0}
    program = training_step(layout(net, 4, **keys), Times()).program
    check_matching(program)
    table = program.table_of(0)
    names = [program.names[name] for name in table.name]
    kernels = [row for row, kind in enumerate(table.kind) if kind == Kind.KERNEL]
    between = []
    for row in kernels:
        sent = [each for each in waits(table, row) if names[each].endswith("dispatch")]
        if names[row].endswith("experts") and sent:
            others = [
                each
                for each in kernels
                if sent[0] < each < row and table.micro_batch[each] != table.micro_batch[row]
            ]
            between.append(len(others))
    # Paired passes: kernels of the other micro-batch while one waits, not its own alone.
    assert any(between)


# --- what is kept ---------------------------------------------------------------------------------


def saved(name: str, layer: int = 2, **keys: Any) -> int:
    return operator(network(MIXED, plan(**keys)).layers[layer], name).saved


def test_what_norms_make_is_not_kept_where_they_run_again() -> None:
    again = {"recompute_modules": ("layernorm",)}
    dense, mixture = 1, 2
    for name, layer in (("query down", mixture), ("router", mixture), ("feed-forward in", dense)):
        dropped = saved(name, layer) - saved(name, layer, **again)
        assert dropped == 2 * TOKENS * 16, name
    # A block that runs again as a whole keeps its input, and nothing else.
    whole = {"recompute_modules": ("layernorm", "mlp")}
    assert saved("feed-forward in", dense, **whole) == 2 * TOKENS * 16
    assert saved("feed-forward swiglu", dense, **whole) == 0
    assert saved("feed-forward out", dense, **whole) == 0


def test_inputs_of_activations_may_be_kept_in_fp8() -> None:
    rows = TOKENS * 2  # two experts a token
    for keys in ({}, {"precision": "fp8"}):
        assert saved("experts swiglu", **keys) == 2 * rows * 2 * 32
        assert saved("experts swiglu", fp8_activations=True, **keys) == rows * 2 * 32
    found = operator(network(MIXED, plan(fp8_activations=True)).layers[2], "experts swiglu")
    cast = (2 + 1) * rows * 2 * 32
    assert lines(found.forward)[-1] == f"experts swiglu input cast: {cast} bytes"
    assert lines(found.backward)[0] == f"experts swiglu input cast back: {cast} bytes"


def test_in_fp8_attention_keeps_its_result_beside_what_is_multiplied() -> None:
    result, sums = TOKENS * 4 * 4, 4 * TOKENS * 4
    assert saved("attention") == sums  # its result is the next input, in the same format
    assert saved("attention output") == 2 * result
    fp8 = {"precision": "fp8"}
    assert saved("attention", **fp8) == sums + 2 * result
    assert saved("attention output", **fp8) == result
    # Cast once more for the gradient, unless scales come from steps before.
    assert saved("attention output", **fp8, fp8_scaling="blocks") == 0
    assert saved("attention output", **fp8, fp8_scaling="blocks", recompute="selective") == result
    assert saved("attention", **fp8, precision_attention="fp8") == sums + result


@pytest.mark.parametrize(("keys", "expected"), [({}, 12), ({"precision_moments": "bf16"}, 8)])
def test_moments_in_16_bits(keys: dict[str, str], expected: int) -> None:
    made = plan(zero=1, **keys).resolved(transformer=True)
    assert rates(made).optimizer == expected
