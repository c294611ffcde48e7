"""`mpisim.search`: what searches say and refuse, how they go on, and the command."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI
from small_searches import SMALL, costly_space_of, space_of, toml_lines

from mpisim import simulate
from mpisim.base.errors import InputError, OutputError
from mpisim.base.toml import toml_value
from mpisim.experiment import read
from mpisim.experiment.load import experiment_of
from mpisim.search import answer, explore, read_search, read_store, write_store
from mpisim.search.answer import Answer, answer_lines
from mpisim.search.balance import balanced_shares, handed_out
from mpisim.search.records import Records, Status


@pytest.mark.parametrize(
    ("key", "values", "says"),
    [
        ("plan.tp", [1, "x"], "'search.vary.plan.tp' is 'x'; it must be an integer"),
        ("plan.tp", [-1, 2], "'search.vary.plan.tp' is -1; it must be an integer from 1"),
        ("plan.tp", {"from": 0, "to": 2}, "'search.vary.plan.tp' is 0"),
        ("cluster.nodes", {"from": 1, "to": 10**40}, "holds more than 100,000,000 values"),
    ],
)
def test_values_that_a_key_can_never_have(key: str, values: Any, says: str) -> None:
    tables = {
        "model": {"preset": "llama-3-8b"},
        "plan": {"global_batch": 8},
        "cluster": {"preset": "dgx-h100"},
        "search": {"vary": {key: values}},
    }
    with pytest.raises(InputError, match=re.escape(says)):
        read_search(tables, "x.toml")


def test_each_may_be_named_in_full() -> None:
    for each in ("plan.pipeline", "plan.pipeline.schedule"):
        vary = {"plan.pipeline.schedule": ["1f1b", "gpipe"], "plan.pp": [1, 2]}
        space = read_search({**SMALL, "search": {"vary": vary, "each": each}}, "x.toml")
        assert space.choice.each == "plan.pipeline"


def test_why_candidates_are_invalid_is_said():
    search = {"vary": {"plan.tp": [1, 16, 32], "plan.pp": [1, 3]}}
    space = read_search({**SMALL, "search": search}, "x.toml")
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    assert (found.counts["invalid"], found.why["count"]) == (5, 4)
    text = " ".join(answer_lines(space, found))
    assert "Of those that do not go together 4 as this one: the plan needs 16 GPUs" in text
    assert "(tp 16, pp 1)" in text


def test_a_search_in_which_nothing_is_valid_says_why_most_are_not():
    search = {"vary": {"plan.tp": [3, 16, 32, 64]}}
    space = read_search({**SMALL, "search": search}, "x.toml")
    said = (
        r"^x\.toml: none of the 4 combinations is valid; 3 of them as this one: the plan needs 16"
    )
    with pytest.raises(InputError, match=said):
        explore(space, MPI.COMM_SELF)
    one = read_search({**SMALL, "search": {"vary": {"plan.tp": [16]}}}, "x.toml")
    with pytest.raises(InputError, match=r"^x\.toml: the plan needs 16 GPUs .*\(tp 16\)$"):
        explore(one, MPI.COMM_SELF)


def test_what_all_share_need_not_go_with_the_defaults_of_what_varies():
    plan = {**SMALL["plan"], "sp": True}  # sequence parallelism needs tp, whose default is 1
    for tps in ([2, 4], [1, 2]):
        tables = {**SMALL, "plan": plan, "search": {"vary": {"plan.tp": tps, "plan.pp": "auto"}}}
        space = read_search(tables, "x.toml")
        found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
        assert found.best
        assert all(each.settings["plan.tp"] > 1 for each in found.best)
    tables["search"] = {"vary": {"plan.tp": [1], "plan.pp": "auto"}}
    with pytest.raises(InputError, match=r"sp is true, but tp is 1"):
        read_search(tables, "x.toml")


def test_balanced_shares_that_are_even_are_no_further_candidate():
    vary = {"plan.pipeline.stages": "auto", "plan.replica_batch": "auto", "plan.pp": [1, 2]}
    cluster = {**SMALL["cluster"], "nodes": 2, "other_gpus": {"1": "a100-sxm"}}
    tables = {**SMALL, "cluster": cluster, "search": {"vary": vary}}
    space = read_search(tables, "x.toml")
    records = explore(space, MPI.COMM_SELF)
    valid = [n for n in range(len(space)) if records.status[n] != Status.INVALID]
    plans = [repr(space.experiment(n).plan) for n in valid]
    assert len(set(plans)) == len(plans) > 1
    only = {**vary, "plan.pipeline.stages": ["balanced"], "plan.pp": [1]}
    space = read_search({**tables, "search": {"vary": only}}, "x.toml")
    assert explore(space, MPI.COMM_SELF).count(Status.INVALID) < len(space)


def test_prices_of_other_gpus_are_off_independently():
    search: dict[str, Any] = {
        "vary": {"cluster.preset": ["dgx-h100", "dgx-a100"], "plan.tp": [2, 4]},
        "objectives": ["usd_per_token"],
    }
    space = read_search({**SMALL, "search": search}, "x.toml")
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    presets = [each.settings["cluster.preset"] for each in found.best]
    values = [each.cost["usd_per_million"] for each in found.best]
    assert values == sorted(values)
    said = " ".join(answer_lines(space, found))
    other = next(at for at, preset in enumerate(presets) if preset != presets[0])
    # 30 % each: closer than that times the square root of 2 is not told apart.
    assert values[other] - values[0] < 0.3 * np.hypot(values[0], values[other])
    assert f"difference): {other + 1}" in said or f", {other + 1}" in said


def test_the_front_is_drawn(tmp_path, call_mpisim):
    pytest.importorskip("matplotlib")
    words = ["search", "llama3-8b-8-h100", "--vary", "plan.tp=1,2,4", "--vary", "plan.zero=1,3"]
    words += ["--objective", "usd_per_token", "--objective", "memory"]
    for name, begins in (("f.svg", b"<?xml"), ("f.png", b"\x89PNG"), ("f.pdf", b"%PDF")):
        found = call_mpisim([*words, "--draw", tmp_path / name])
        assert found.rc == 0, found.stderr
        assert found.stdout.endswith(f"\n{tmp_path / name} is written\n")
        assert (tmp_path / name).read_bytes().startswith(begins)
    text = (tmp_path / "f.svg").read_text()
    assert "dollars of a million tokens; less is better" in text
    assert "memory of the fullest GPU (GiB)" in text
    rows = found.stdout.split("The front:")[1].splitlines()
    assert f"1: {rows[2].split('  ')[-1].strip()}" in text
    again = call_mpisim([*words, "--draw", tmp_path / "f.svg"])
    assert again.rc != 0
    assert "f.svg" in again.stderr
    before = (tmp_path / "f.svg").read_bytes()
    again = call_mpisim([*words, "--draw", tmp_path / "f.svg", "--overwrite"])
    assert again.rc == 0
    assert (tmp_path / "f.svg").read_bytes() == before


def test_a_front_that_is_not_shown_whole_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    search = {"vary": {"plan.tp": [1, 2, 4, 8]}, "objectives": ["memory", "step_time"]}
    space = read_search({**SMALL, "search": search}, "x.toml")
    records = explore(space, MPI.COMM_SELF)
    whole = answer(space, records, MPI.COMM_SELF)
    size = len(whole.front)
    assert whole.front_size == size > 2
    assert "The front: no other" in "\n".join(answer_lines(space, whole))
    monkeypatch.setattr(sys.modules[Answer.__module__], "MAX_FRONT", 2)
    part = answer(space, records, MPI.COMM_SELF)
    assert part.front == whole.front[:2]  # of the least memory
    assert f"The front (the first 2 of {size}): no other" in "\n".join(answer_lines(space, part))
    assert Answer.of_json(json.loads(json.dumps(part.as_json()))).front_size == size


BROKEN = [
    ({"max_gpus": 4}, "12 candidates are beyond max_gpus = 4; the nearest has 8 (tp 1, zero 0)"),
    (
        {"max_step_time": 0.001},
        "12 candidates are beyond max_step_time = 0.001 s; the nearest has at least",
    ),
    (
        {"max_power": "100 W"},
        "12 candidates are beyond max_power = 100 W; the nearest has at least",
    ),
    ({"max_price": 1}, "12 candidates are beyond max_price = $1; the nearest has $"),
    (
        {"max_usd_per_hour": 0.01},
        "12 candidates are beyond max_usd_per_hour = $0.01; the nearest has",
    ),
    ({"memory_headroom": 79}, "12 candidates are beyond memory of 79.0 GiB a GPU, of which"),
    ({"max_memory": 0.5}, "12 candidates are beyond max_memory = 0.5 GiB; the nearest has"),
]


@pytest.mark.parametrize(("limits", "said"), BROKEN, ids=[next(iter(each)) for each, _ in BROKEN])
def test_limits_that_all_break_are_named_with_the_nearest(limits, said):
    search = {"vary": {"plan.tp": [1, 2, 4, 8], "plan.zero": [0, 1, 3]}, **limits}
    space = read_search({**SMALL, "search": search}, "x.toml")
    records = explore(space, MPI.COMM_SELF)
    found = answer(space, records, MPI.COMM_SELF)
    assert said in " ".join(" ".join(answer_lines(space, found)).split())
    (broken,) = found.limits
    assert broken.candidates == len(space) == 12
    assert broken.value > broken.allowed
    # No candidate is nearer: exhaustively, by what is known of each alone.
    of = {
        "max_gpus": records.gpus,
        "max_step_time": records.bound * 1e-12,
        "max_power": records.least_watts,
        "max_price": records.purchase,
        "memory": records.peak,
    }
    if broken.limit in of:
        assert broken.value == pytest.approx(float(of[broken.limit].min()))
        assert broken.value == pytest.approx(float(of[broken.limit][broken.nearest]))
    assert Answer.of_json(json.loads(json.dumps(found.as_json()))).limits == [broken]


@pytest.mark.parametrize(
    ("step_ps", "shown"), [(999_400_000_000, "999 ms"), (999_700_000_000, "1.00 s")]
)
def test_a_step_just_below_a_second_is_shown_in_seconds(step_ps: int, shown: str) -> None:
    search = {"vary": {"plan.tp": [1]}}
    space = read_search({**SMALL, "search": search}, "x.toml")
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    best = [replace(found.best[0], step_ps=step_ps)]
    assert f"  1  {shown}  " in "\n".join(answer_lines(space, found._replace(best=best)))


def test_limits_that_only_simulated_candidates_break():
    search = {"vary": {"plan.tp": [1, 2]}}
    space = read_search({**SMALL, "search": search}, "x.toml")
    records = explore(space, MPI.COMM_SELF)
    fastest = float(records.step[records.step > 0].min()) * 1e-12
    search["max_step_time"] = fastest * 0.999
    space = read_search({**SMALL, "search": search}, "x.toml")
    records = explore(space, MPI.COMM_SELF)
    (broken,) = answer(space, records, MPI.COMM_SELF).limits
    assert (broken.limit, broken.at_least) == ("max_step_time", False)
    assert broken.value == pytest.approx(fastest)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--draw", "f.txt", "--objective", "memory"], "pictures end in .svg, .png or .pdf"),
        (["--draw", "f.png"], "the search has one objective, and no front"),
        (["--overwrite"], "a file to write: -o FILE or --json FILE or --draw FILE"),
        (["--objective", "usd"], "usd_per_token"),
        (["--set", "search.max_power=2 MV"], "it must be a power above 0"),
        (["--set", "search.max_power=0"], "it must be a power above 0"),
        (["--limit", "memory=60 GB"], "is '60 GB'; it must be a number of GiB, as 60"),
        (["--limit", "step_time=2 s"], "is '2 s'; it must be a number of seconds, as 2.5"),
        (["--objective", "gpus", "--objective", "gpus"], "objectives has 'gpus' twice"),
        (["--vary", "plan.tp=4"], "--vary plan.tp=4: plan.tp is varied twice"),
        (["--set", "search.max_price=-1"], "max_price"),
        (["--set", "prices.gpu_hour=-1"], "prices.gpu_hour"),
        (["--set", "prices.contract=rented"], "on-demand"),
        (["--set", "prices.gpu_hours.h100-smx=1"], "did you mean 'h100-sxm'"),
    ],
)
def test_bad_costs_are_one_line(more, said, call_mpisim):
    found = call_mpisim(["search", "llama3-8b-8-h100", "--vary", "plan.tp=1,2", *more])
    assert found.rc == 2
    assert said in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=4),
)
def test_work_is_handed_out_so_that_the_last_is_done_early(number, workers):
    each, already = ([worker[i] for worker in workers] for i in (0, 1))
    n = len(workers)
    found = handed_out(number + n, each, already, least=1)
    assert sum(found) == number + n
    assert min(found) >= 1

    def done(counts: Any) -> int:
        return max(b + c * t for b, c, t in zip(already, counts, each, strict=True))

    def shares(rest: int, places: int) -> Any:
        if places == 1:
            yield (rest + 1,)
            return
        for own in range(rest + 1):
            yield from ((own + 1, *others) for others in shares(rest - own, places - 1))

    assert done(found) == min(done(counts) for counts in shares(number, n))


MIXED: dict[str, Any] = {
    "model": {"preset": "llama-3-8b", "layers": 16, "seq_len": 2048},
    "plan": {"tp": 8, "micro_batch": 1, "global_batch": 32},
    "cluster": {"preset": "dgx-h100", "nodes": 4, "other_gpus": {"2-3": "a100-sxm"}},
}


def test_uneven_shares_on_mixed_gpus_beat_even_ones():
    vary: dict[str, Any] = {
        "plan.pp": [1, 2],
        "plan.replica_batch": "auto",
        "plan.pipeline.stages": "auto",
    }
    space = read_search({**MIXED, "search": {"vary": vary, "top": 8}}, "x.toml")
    found = answer(space, explore(space, MPI.COMM_SELF), MPI.COMM_SELF)
    steps = {each.described: each.step_time for each in found.best}
    even = "pipeline.stages even", "replica_batch even"
    for pp, key in ((1, "replica_batch"), (2, "pipeline.stages")):
        uneven = ", ".join(
            [
                f"pp {pp}",
                *(
                    each.replace("even", "balanced") if key in each else each
                    for each in reversed(even)
                ),
            ]
        )
        assert steps[uneven] < 0.9 * steps[", ".join([f"pp {pp}", *reversed(even)])]
    settings = found.best[0].settings
    batch = settings.get("plan.replica_batch", [])
    assert not batch or (sum(batch) == 32 and batch[0] > batch[-1])
    # The command that is printed gives the same step.
    changes = [f"{key}={toml_value(value)}" for key, value in settings.items()]
    again = simulate(read(toml_lines(MIXED), "x.toml", changes))
    assert again is not None
    assert again.digest == found.best[0].digest


def test_layers_are_balanced_by_the_speed_of_kernels():
    experiment = experiment_of({**MIXED, "plan": {**MIXED["plan"], "pp": 2}}, "x.toml")
    stages = balanced_shares(experiment, ["pipeline.stages"])["pipeline.stages"]
    assert sum(stages) == 16
    assert stages[0] > stages[1] > 0  # H100s come first
    equal = experiment_of(
        {
            **MIXED,
            "plan": {**MIXED["plan"], "pp": 2},
            "cluster": {"preset": "dgx-h100", "nodes": 4},
        },
        "x.toml",
    )
    assert (
        max(balanced_shares(equal, ["pipeline.stages"])["pipeline.stages"]) <= 9
    )  # the head takes its time
    assert balanced_shares(equal, ["replica_batch"])["replica_batch"] == [16, 16]


@pytest.mark.parametrize(
    ("plan", "key", "said"),
    [
        ({"pipeline": "dualpipe", "pp": 2}, "pipeline.stages", "work both ways"),
        (
            {"pp": 4, "vpp": 8, "pipeline": "interleaved"},
            "pipeline.stages",
            "cannot be shared by 4",
        ),
        ({"micro_batch": 3}, "replica_batch", "no multiple of micro_batch = 3"),
    ],
)
def test_what_cannot_be_balanced_is_said(plan, key, said):
    experiment = experiment_of({**MIXED, "plan": {**MIXED["plan"], **plan}}, "x.toml")
    with pytest.raises(InputError, match=said):
        balanced_shares(experiment, [key])


def test_what_has_no_price_is_invalid():
    search = {"vary": {"plan.tp": [1, 2]}, "objectives": ["usd_per_token"]}
    cluster = {"preset": "alps"}
    space = read_search({**SMALL, "cluster": cluster, "search": search}, "x.toml")
    with pytest.raises(InputError, match=r"give prices\.gpu_hour"):
        explore(space, MPI.COMM_SELF)


@pytest.mark.parametrize("space", [space_of(3), costly_space_of(2)], ids=["time", "dollars"])
def test_a_search_goes_on_where_it_was_stopped(tmp_path, space):
    kept: list[Records] = []

    def keep(records: Records) -> None:
        write_store(tmp_path / "s.h5", space, records, overwrite=True)
        kept.append(read_store(tmp_path / "s.h5")[1])

    whole = explore(space, MPI.COMM_SELF, each_round=keep)
    again, known, found = read_store(tmp_path / "s.h5")
    assert (again.keys, again.values, again.choice) == (space.keys, space.values, space.choice)
    assert found is None
    for records in kept:
        resumed = explore(again, MPI.COMM_SELF, known=records)
        for name, column in whole.columns.items():
            assert column.tolist() == resumed.columns[name].tolist(), name
    one = answer(space, whole, MPI.COMM_SELF)
    other = answer(again, known, MPI.COMM_SELF)
    assert one == other
    assert answer_lines(space, one) == answer_lines(again, other)


def test_what_candidates_set_alike_is_said_once():
    space = read_search(
        {**SMALL, "search": {"vary": {"plan.tp": [1, 2], "plan.zero": [0, 1], "plan.sp": [False]}}},
        "x.toml",
    )
    assert space.described(1) == "tp 1, zero 1, sp no"
    assert space.described(1, [0, 1]) == "zero 1"
    assert space.in_common([0, 1]) == "tp 1, sp no"
    assert space.in_common([0, 3]) == "sp no"


@pytest.mark.mpi
def test_an_error_of_one_process_is_raised_on_all(comm: Any) -> None:
    def fail(records: Records) -> None:
        raise OutputError("the disk is full")

    with pytest.raises(OutputError, match="the disk is full"):
        explore(space_of(3), comm, each_round=fail)


@pytest.mark.mpi
def test_an_error_in_a_round_is_raised_on_all(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **named: Any) -> Any:
        raise OutputError("no room")

    if comm.rank == comm.size - 1:
        # A round of bounds has candidates for each of four processes; one of whole steps may not.
        monkeypatch.setattr(sys.modules[explore.__module__], "least_step_time", refused)
    with pytest.raises(OutputError, match="no room"):
        explore(space_of(3), comm)


def test_limits_that_only_a_whole_step_breaks() -> None:
    """Between what a step takes at least and what it takes, and the same of power."""
    vary = {"plan.tp": [1, 2]}
    free = {"vary": vary, "objectives": ["step_time", "power"]}
    known = explore(read_search({**SMALL, "search": free}, "x.toml"), MPI.COMM_SELF)
    (done,) = np.flatnonzero(known.status == Status.SIMULATED)[:1]
    assert known.bound[done] < known.step[done]
    limits = {
        Status.TOO_SLOW: {"max_step_time": (known.bound[done] + known.step[done]) / 2e12},
        Status.OVER_BUDGET: {
            "max_power": (known.least_watts[done] + known.energy[done] / known.step[done] * 1e12)
            / 2
        },
    }
    for status, limit in limits.items():
        limited = {**free, **{key: float(value) for key, value in limit.items()}}
        found = explore(read_search({**SMALL, "search": limited}, "x.toml"), MPI.COMM_SELF)
        assert found.status[done] == status


@pytest.mark.parametrize(
    ("search", "said"),
    [
        (None, "has no table [search]"),
        ({}, "key 'search.vary' is {}"),
        ({"vary": {"plan.tq": [1]}}, "unknown key 'tq' in [plan]"),
        ({"vary": {"tp": [1]}}, "'tp', which is no key"),
        ({"vary": {"plan.tp": []}}, "key 'search.vary.plan.tp' is []"),
        ({"vary": {"plan.tp": [1, 1]}}, "stands in it twice"),
        ({"vary": {"plan.tp": 2}}, "it must be a list"),
        ({"vary": {"plan.tp": {"from": 5, "to": 2}}}, "holds no value"),
        ({"vary": {"plan.tp": {"powers_of_two": [4, 1]}}}, "it must be as [1, 8]"),
        ({"vary": {"plan.clip": "auto"}}, 'is "auto"; that is for plan.tp'),
        ({"vary": {"cluster.preset": ["dgx-h100", "dgx-h1000"]}}, "unknown cluster 'dgx-h1000'"),
        ({"vary": {"framework.name": ["nemo", "nmo"]}}, "(did you mean 'nemo'?)"),
        ({"vary": "auto", "objectives": ["speed"]}, "[0]' is 'speed' (did you mean 'step_time'"),
        ({"vary": "auto", "objective": ["gpus"]}, "unknown key 'objective' in [search]"),
        ({"vary": {"plan.micro_batch": {"from": 1, "to": 10**6}, "plan.zero": "auto",
                   "plan.global_batch": {"from": 1, "to": 10**6}}}, "combinations"),
    ],
)  # fmt: skip
def test_bad_tables_are_one_line(search, said):
    given = dict(SMALL) if search is None else {**SMALL, "search": search}
    with pytest.raises(InputError) as caught:
        space = read_search(given, "x.toml")
        explore(space, MPI.COMM_SELF)
    assert said in str(caught.value)
    assert str(caught.value).startswith("x.toml: ")
    assert "\n" not in str(caught.value)
