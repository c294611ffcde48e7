"""Validation of training steps: predictions beside measurements, errors, what is counted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from measured_steps import NEUSIGHT, VTRAIN, mapped, read_row, table
from mpi4py import MPI

from mpisim.base.errors import InputError, UsageError
from mpisim.validate.e2e import as_json, compare, render
from mpisim.validate.e2e.pairs import pairs
from mpisim.validate.e2e.predict import predict


def test_conditions(tmp_path: Path) -> None:
    file = table(tmp_path / "t.csv", VTRAIN, NEUSIGHT)
    with pytest.raises(UsageError, match=r"no such column \(did you mean 'source'\?\)"):
        compare(file, MPI.COMM_SELF, where={"sourc": "vtrain"})
    with pytest.raises(UsageError, match="source is one of neusight, vtrain"):
        compare(file, MPI.COMM_SELF, where={"source": "me"})
    with pytest.raises(InputError, match=r"no row could be predicted; 2 of them: .*unknown key"):
        compare(file, MPI.COMM_SELF, changes=["plan.nonsense=1"])


def test_the_json_form(tmp_path: Path) -> None:
    file = table(
        tmp_path / "t.csv",
        VTRAIN,
        {**VTRAIN, "id": "twice", "step_time_ms": 80.0},
        {**VTRAIN, "id": "mb4", "micro_batch": 4},
        NEUSIGHT,
        {**VTRAIN, "id": "odd", "global_batch": 15},
        {**VTRAIN, "id": "f", "trust": "F"},
    )
    found = compare(file, MPI.COMM_SELF)
    assert found is not None
    figures = as_json(found, str(file))
    json.dumps(figures, allow_nan=False)
    assert (figures["kind"], figures["rows"], figures["predicted"]) == ("e2e", 6, 5)
    assert figures["coverage"]["all"] == pytest.approx(5 / 6)
    assert {"trust=A", "trust=B", "trust=F", "source=vtrain", "parallelism=dp+tp+pp"} <= set(
        figures["groups"]
    )
    assert figures["groups"]["trust=A"]["n"] == 3
    (reason,) = figures["skipped"]
    assert "global_batch is 15" in reason
    cases = {case["id"]: case for case in figures["cases"]}
    # Equal experiments, simulated once.
    assert cases["vtrain"]["predicted"] == cases["twice"]["predicted"]
    # 80 ms / 60 ms of the same prediction.
    ratio = (cases["vtrain"]["error"] + 1) / (cases["twice"]["error"] + 1)
    assert ratio == pytest.approx(80 / 60)
    shares = cases["vtrain"]["breakdown"]
    assert math.fsum(shares.values()) == pytest.approx(1)
    assert shares["host"] > 0.5  # layers of 4 short kernels: launches set the pace
    # The mean over rows of trust F is in their own group only.
    measured = [case for case in figures["cases"] if case["trust"] != "F"]
    assert figures["mape"] == pytest.approx(sum(abs(c["error"]) for c in measured) / 4)
    assert figures["pairs"]["micro-batch"]["n"] == 1
    text = render(found)
    assert "5 of them predicted" in text
    assert "left out:" in text


def test_without_the_optimizer(tmp_path: Path) -> None:
    found = compare(table(tmp_path / "t.csv", NEUSIGHT), MPI.COMM_SELF)
    assert found is not None
    (row,) = found.compared
    assert row.predicted == row.outcome.before_optimizer
    # SGD moves at least 12 bytes a parameter: 774 million of them at 900 GB/s are 10 ms.
    assert 0.010 < row.outcome.seconds - row.predicted < 0.2


def test_pairs_of_equal_rows_are_none(tmp_path: Path) -> None:
    found = compare(table(tmp_path / "t.csv", VTRAIN, {**VTRAIN, "id": "again"}), MPI.COMM_SELF)
    assert found is not None
    assert pairs(found.compared) == []


def test_pairs_of_one_effect_have_one_recipe_of_fp8(tmp_path: Path) -> None:
    """Tensor parallelism with overlap beside none counts where the printed recipe is the same."""

    def printed(recipe: str, overlap: str) -> Any:
        texts = {"precision_as_printed": recipe, "tp_overlap": overlap, "suspect": ""}
        made = read_row(tmp_path / "t.csv", VTRAIN, precision="fp8", **texts)
        return SimpleNamespace(row=made, trust="A", measured=1.0, predicted=1.0)

    plain, same, other = (
        printed("fp8 tensorwise", "False"),
        printed("fp8 tensorwise", "True"),
        printed("fp8 rowwise", "True"),
    )
    assert [each.kind for each in pairs([plain, same])] == ["overlapped tensor parallelism"]
    assert pairs([plain, other]) == []
    sixteen = SimpleNamespace(
        row=read_row(tmp_path / "t.csv", VTRAIN, precision="bf16", precision_as_printed="bf16"),
        trust="A",
    )
    assert [each.kind for each in pairs([plain, sixteen])] == ["precision"]


def test_a_long_step_from_two_shorter_ones(tmp_path: Path) -> None:
    one = mapped(read_row(tmp_path / "t.csv", VTRAIN, global_batch=256))
    (short,) = predict([one], MPI.COMM_SELF) or []
    (whole,) = predict([one], MPI.COMM_SELF, every=True) or []
    assert short.seconds == pytest.approx(whole.seconds, rel=1e-4)
    for name, share in whole.breakdown.items():
        assert short.breakdown[name] == pytest.approx(share, abs=2e-3)


@pytest.mark.mpi
def test_processes_share_the_rows(tmp_path_factory: pytest.TempPathFactory) -> None:
    comm = MPI.COMM_WORLD
    folder = tmp_path_factory.mktemp("e2e") if comm.rank == 0 else None
    folder = comm.bcast(folder)
    rows = [{**VTRAIN, "id": f"mb{m}", "micro_batch": m} for m in (1, 2, 4)]
    if comm.rank == 0:
        table(folder / "t.csv", *rows)
    comm.Barrier()
    found = compare(folder / "t.csv", comm)
    alone = compare(folder / "t.csv", MPI.COMM_SELF)
    assert (found is None) == (comm.rank > 0)
    if found is not None and alone is not None:
        outcomes = [each.outcome for each in found.compared]
        assert outcomes == [each.outcome for each in alone.compared]


def test_the_command(tmp_path: Path, call_mpisim: Any) -> None:
    file = table(tmp_path / "t.csv", VTRAIN, NEUSIGHT)
    out = tmp_path / "out.json"
    picture = tmp_path / "out.png"
    arguments = ["validate", "e2e", str(file), "--where", "source=vtrain", "--json", str(out)]
    done = call_mpisim([*arguments, "--plot", str(picture)])
    assert done.rc == 0, done.stderr
    assert "1 rows" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(out.read_text())["predicted"] == 1
    bad = call_mpisim(["validate", "e2e", str(file), "--where", "vtrain"])
    assert bad.rc == 2
    assert "not of the form COLUMN=VALUE" in bad.stderr
