"""What is timed once: counts against a walk over all rows, costs against closed forms."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from mpi4py import MPI

from mpisim.base.errors import InputError
from mpisim.base.kinds import Kind, Operation
from mpisim.cli import main
from mpisim.kernels.measured import read
from mpisim.prediction.network import NetworkCache
from mpisim.prediction.prepared import prepare
from mpisim.search import SearchSpace, read_search
from mpisim.search.profiling import Profiling, profiling

SEARCH = "distsim-bert-exlarge-search-16-a10"


def space(vary: dict[str, Any] | None = None, **plan: Any) -> SearchSpace:
    """A small GPT on two nodes of four A100, and what is varied."""
    tables = {
        "model": {
            "family": "gpt", "layers": 4, "hidden": 256, "heads": 8, "vocab": 1024, "seq_len": 128,
        },
        "plan": {"global_batch": 32, "precision": "bf16", **plan},
        "cluster": {"preset": "dgx-a100", "nodes": 2},
        "search": {"vary": vary or {"plan.micro_batch": [1]}},
    }  # fmt: skip
    return read_search(tables, "small.toml")


def found(*args: Any, **keys: Any) -> Profiling:
    return profiling(space(*args, **keys), MPI.COMM_SELF)


def test_counts_are_those_of_a_walk_over_all_rows_of_all_ranks() -> None:
    one = space({"plan.tp": [2]}, pp=2, zero=1)
    program = prepare(one.experiment(0), networks=NetworkCache()).program
    kernels: dict[tuple[str, int], int] = {}
    members: dict[tuple[int, int, int, bool], int] = {}
    groups = program.communicators
    for rank in range(program.n_ranks):
        table, slots = program.table_of(rank), program.slots_of(rank)
        for row in range(len(table)):
            if table.kind[row] in (Kind.KERNEL, Kind.COPY):
                key = program.names[table.name[row]], int(table.duration[row])
                kernels[key] = kernels.get(key, 0) + 1
            elif table.is_communication[row]:
                group = groups.group(int(slots[table.slot[row]]))
                what = (
                    int(table.operation[row]),
                    int(table.bytes[row]),
                    len(group),
                    len({each // 8 for each in group}) > 1,
                )
                members[what] = members.get(what, 0) + 1
    counted = profiling(one, MPI.COMM_SELF)
    assert sum(many for _, many in counted.kernels) == sum(kernels.values())
    # Kernels of one description have one duration, and may have several names.
    assert {each.duration for each, _ in counted.kernels} == {took for _, took in kernels}
    assert len(counted.kernels) <= len(kernels)
    assert {
        (int(each.operation), each.bytes, each.ranks, each.nodes > 1): many * each.ranks
        for each, many in counted.communications
    } == {what: many for what, many in members.items() if what[2] > 1}


def test_kernels_do_not_grow_with_micro_batches_and_replicas() -> None:
    """DistSim, section 4.1: what is repeated is timed once."""
    kinds = {
        (batch, tp): len(found(None, tp=tp, global_batch=batch).kernels)
        for batch in (16, 64)
        for tp in (4, 8)
    }
    assert kinds[16, 8] == kinds[64, 8]
    assert kinds[16, 4] == kinds[64, 4]


def test_more_plans_cost_what_they_add() -> None:
    both = found({"plan.tp": [1, 2]})
    alone = [found({"plan.tp": [tp]}) for tp in (1, 2)]
    assert [each.alone for each in both.plans] == [each.cost for each in alone]
    assert both.plans[0].cost == alone[0].cost
    assert both.cost == sum(each.cost for each in both.plans) <= both.alone
    assert both.direct == sum(each.direct for each in alone)
    assert both.plans[0].kernels == len(alone[0].kernels)


def test_collectives_of_many_ranks_are_timed_with_few() -> None:
    """A ring moves (n - 1)/n of the bytes: 16/15 of 7/8 of the time, on 8 of 16 GPUs."""
    one = space(None, zero=0)
    whole = profiling(one, MPI.COMM_SELF, most_ranks=16)
    part = profiling(one, MPI.COMM_SELF, most_ranks=8)
    (long, _), *_ = [each for each in whole.communications if each[0].ranks == 16]
    (short, _), *_ = [each for each in part.communications if each[0].ranks == 16]
    assert long.operation is short.operation is Operation.ALL_REDUCE
    assert (long.timed_ranks, short.timed_ranks) == (16, 8)
    assert long.cost == 16 * long.duration
    assert short.cost == pytest.approx(8 * long.duration * (7 / 8) / (15 / 16), abs=1)


def test_a_list_that_is_filled_in_is_one_of_measured_kernels(tmp_path: Path) -> None:
    path = tmp_path / "todo.csv"
    file = tmp_path / "mine.json"
    assert main(["profile", "llama3-8b-8-h100", "--kernels", str(path), "--json", str(file)]) == 0
    with path.open() as lines:
        rows = list(csv.DictReader(lines))
    assert {each["median_us"] for each in rows} == {""}
    for each in rows:
        each["median_us"], each["repeats"] = each["predicted_us"], "10"
    with path.open("w") as lines:
        table = csv.DictWriter(lines, rows[0])
        table.writeheader()
        table.writerows(rows)
    measured, skipped = read(path)
    assert not skipped
    described = {repr(kernel) for each in measured for kernel in each.kernels}
    listed = json.loads(file.read_text())["kernels"]
    assert described == {each["kernel"] for each in listed}


def test_timing_costs_no_more_than_distsims(capsys: pytest.CaptureFixture[str]) -> None:
    """12.96 % of running all 15 plans (section 6); two nodes are enough."""
    assert main(["profile", SEARCH]) == 0
    text = capsys.readouterr().out
    assert "A step of 15 plans, each on all of its GPUs, takes" in text
    assert "8 GPUs at a time at most, on 2 nodes." in text
    share = float(text.split("timing costs ")[1].split(" %")[0])
    assert 0 < share <= 12.96


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--most-ranks", "1"], "--most-ranks is 1; it must be 2 or more"),
        (["--vary", "plan.tp"], "--vary plan.tp: not of the form TABLE.KEY=VALUE,VALUE"),
        (["--set", "plan.dp=16"], "none of 1 combinations is a plan that fits:"),
    ],
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "llama3-8b-8-h100", *words]) == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1


def test_too_many_plans_are_refused() -> None:
    vary = {"plan.micro_batch": {"from": 1, "to": 64}, "plan.global_batch": {"from": 1, "to": 65}}
    with pytest.raises(InputError, match="4,160 combinations; at most 4,096 are gone through"):
        found(vary)


EXPERIMENT = """
[model]
family = "gpt"
layers = 4
hidden = 256
heads = 8
vocab = 1024
seq_len = 128
[plan]
global_batch = 32
precision = "bf16"
[cluster]
preset = "dgx-a100"
nodes = 2
"""


def test_the_list_of_kernels_replaces_no_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list and the figures are outputs alike: neither goes over the experiment or the other."""
    file, new = tmp_path / "small.toml", tmp_path / "new.csv"
    file.write_text(EXPERIMENT)
    more = ["--overwrite", "--json", str(tmp_path / "figures.json")]
    assert main(["profile", str(file), "--kernels", str(file), *more]) == 2
    assert "--kernels would write over the input; name another file" in capsys.readouterr().err
    assert file.read_text() == EXPERIMENT
    assert main(["profile", str(file), "--kernels", str(new), "--json", str(new)]) == 2
    assert "--kernels and --json name the same file" in capsys.readouterr().err
    assert not new.exists()
    assert main(["profile", str(file), "--overwrite"]) == 2
    assert "a file to write: --kernels FILE or --json FILE" in capsys.readouterr().err


def test_a_list_that_exists_is_replaced_when_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, old = tmp_path / "small.toml", tmp_path / "old.csv"
    file.write_text(EXPERIMENT)
    old.write_text("as it was")
    assert main(["profile", str(file), "--kernels", str(old)]) == 2
    assert old.read_text() == "as it was"
    assert main(["profile", str(file), "--kernels", str(old), "--overwrite"]) == 0
    assert old.read_text().startswith("gpu,family,operation,median_us")
    assert "is written; fill in median_us" in capsys.readouterr().out


def test_what_an_option_varies_joins_what_the_file_varies(tmp_path: Path) -> None:
    """As of `mpisim search`: keys of the file that no option names stay, others are replaced."""
    file, figures = tmp_path / "small.toml", tmp_path / "figures.json"
    file.write_text(EXPERIMENT + "[search.vary]\nplan.tp = [1, 2]\nplan.pp = [1, 2, 4]\n")
    words = ["--vary", "plan.pp=1,2", "--vary", "plan.zero=0,1", "--json", str(figures)]
    assert main(["profile", str(file), *words]) == 0
    plans = {each["plan"] for each in json.loads(figures.read_text())["plans"]}
    assert plans == {
        f"tp {tp}, pp {pp}, zero {zero}" for tp in (1, 2) for pp in (1, 2) for zero in (0, 1)
    }


def test_what_does_not_fit_is_refused_as_a_run_is(capsys: pytest.CaptureFixture[str]) -> None:
    """One line names file, GiB and what would fit; ``run.allow_oom`` counts the plan."""
    large = ["llama3-8b-8-h100", "--set", "plan.micro_batch=8", "--set", "plan.global_batch=64"]
    assert main(["run", *large]) == 2
    said = capsys.readouterr().err.partition("the plan does not fit into")[2]
    assert main(["profile", *large]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.startswith("mpisim: error: llama3-8b-8-h100.toml: ")
    assert line.endswith(f"the plan does not fit into{said}")
    assert "--allow-oom simulates it all the same" in said
    for allowed in (["--set", "run.allow_oom=true"], ["--allow-oom"]):
        assert main(["profile", *large, *allowed]) == 0
        assert "A step of 1 plan," in capsys.readouterr().out


def test_of_many_plans_those_that_fit_are_counted(tmp_path: Path) -> None:
    """The others are listed with what they set, unless they are allowed."""
    many = ["profile", "llama3-8b-8-h100", "--vary", "plan.micro_batch=1,8", "--json"]
    few, all_of_them = tmp_path / "few.json", tmp_path / "all.json"
    words = ["--set", "plan.global_batch=64"]
    assert main([*many, str(few), *words]) == 0
    found = json.loads(few.read_text())
    assert [each["plan"] for each in found["plans"]] == ["micro_batch 1"]
    (reason,) = found["refused"]
    assert reason.startswith("micro_batch 8: the plan does not fit into ")
    assert main([*many, str(all_of_them), *words, "--allow-oom"]) == 0
    found = json.loads(all_of_them.read_text())
    assert [each["plan"] for each in found["plans"]] == ["micro_batch 1", "micro_batch 8"]
    assert not found["refused"]
