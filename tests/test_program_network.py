"""``mpisim program run --cluster``: the network of ``mpisim run``, by the same keys."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_speeds import SMALL

from mpisim.errors import InputError
from mpisim.experiment import read
from mpisim.prediction.case import prepare
from mpisim.prediction.program_network import network_for
from mpisim.program import Program
from mpisim.simulate import simulate

Run = Callable[..., Any]

SHARED = (
    SMALL.replace("hidden = 1024", "hidden = 4096").replace("seq_len = 512", "seq_len = 2048")
    .replace("tp = 4", "tp = 2").replace("dp = 4", "dp = 8")
)  # fmt: skip
"""Communications meet on links."""


def kept(text: str, *changes: str) -> tuple[str, Program]:
    """Return the digest of an experiment, and what its ranks do."""
    case = prepare(read(text, "e", ["overlap.model=off", *changes]))
    results = simulate(case)
    assert results is not None
    return results.digest, case.program


@pytest.mark.parametrize(
    "changes",
    [
        ["network.contention=false"],
        ["network.contention=true"],
        ["network.model=alpha-beta"],
        ["network.nccl.NCCL_PROTO=ll"],
        ["network.changes.'links.node0.nic3->*.bandwidth'=50 %"],
        ["cluster.nic_bandwidth=100 Gb/s", "cluster.nodes=3", "cluster.gpus=16"],
    ],
)
def test_a_program_takes_as_long_as_its_experiment(changes: list[str]) -> None:
    digest, program = kept(SHARED, *changes)
    asked = [each for each in changes if not each.startswith("cluster.gpus")]
    found = network_for("dgx-h100", asked, program.n_ranks)
    results = simulate(program, network=found.network, contention=found.contention)
    assert results is not None
    assert results.digest == digest


def test_contention_tells_the_cases_apart() -> None:
    assert kept(SHARED, "network.contention=false")[0] != kept(SHARED)[0]


def test_results_say_the_model_and_what_was_assumed() -> None:
    _, program = kept(SMALL)
    plain = network_for("dgx-h100", [], 16).statements(program)
    assert plain["assumptions"] == [
        "DGX H100: 8 H100 SXM5 a node, NVLink 4 and NVSwitch, one 400 Gb/s NIC a GPU",
        "2 nodes; neighbouring ranks share a node",
        "network.model = nccl (default)",
        "network.algorithm = library (default)",
        "network.contention = true (default)",
    ]
    changes = ["network.contention=false", "cluster.nic_bandwidth=800 Gb/s"]
    said = network_for("dgx-h100", changes, 16).statements(program)["assumptions"]
    assert "network.contention = false" in said
    assert not any("contention = true" in each for each in said)
    assert any("PCIe is the limit" in each for each in said)
    other = network_for("dgx-h100", ["network.model=alpha-beta"], 16).statements(program)
    assert "network.model = alpha-beta" in other["assumptions"]
    assert not any("contention = true" in each for each in other["assumptions"])
    assert any("overlap" in each for each in plain["not_modelled"])


@pytest.mark.parametrize("nprocs", [1, 2])
def test_the_command_line(run_mpisim: Run, tmp_path: Path, nprocs: int) -> None:
    (tmp_path / "e.toml").write_text(SHARED)
    alone = ["--set", "network.contention=false"]
    first = run_mpisim(
        ["run", "e.toml", *alone, "--set", "overlap.model=off", "--save-program", "step.h5",
         "--json", "run.json"]
    )  # fmt: skip
    assert first.rc == 0, first.stderr
    ask = ["program", "run", "step.h5", "--cluster", "dgx-h100", "--json", "program.json"]
    done = run_mpisim([*ask, *alone, "-o", "kept.h5"], nprocs=nprocs)
    assert done.rc == 0, done.stderr
    digests = [json.loads((tmp_path / name).read_text())["digest"]
               for name in ("run.json", "program.json")]  # fmt: skip
    assert digests[0] == digests[1]
    for line in ("network.model = nccl (default)", "network.contention = false"):
        assert f"  - {line}\n" in done.stdout
    assert run_mpisim(["report", "kept.h5"]).stdout == done.stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["network.modl=nccl"], r"unknown key 'modl' in \[network\] \(did you mean 'model'\?\)"),
        (["network.model=ring"], "'network.model' is 'ring'.*allowed: nccl, alpha-beta"),
        (["netwrk.model=nccl"], r"--set netwrk: .*\(did you mean 'network'\?\)"),
        (["plan.tp=2"], "--set plan: a program's keys are those of network and cluster"),
        (["network=3"], "--set network: not of the form network.KEY=VALUE"),
        (["cluster.gpus=3"], "--set cluster.gpus: no key of a program's cluster"),
        (["cluster.nodes=1"], "cluster.nodes is 1; the program's 16 ranks need 2 nodes of 8 GPUs"),
        (["network.model=alpha-beta", "network.nccl.NCCL_PROTO=ll"], "nccl is given; model = 'alp"),
        (["network.model=alpha-beta", "cluster.nics=4"], "cluster.nics is given; network.model"),
        (["network"], "not of the form TABLE.KEY=VALUE"),
    ],
)
def test_what_cannot_be_is_one_line(changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        network_for("dgx-h100", changes, 16)
    assert "\n" not in str(error.value)


def test_keys_need_a_cluster(run_mpisim: Run) -> None:
    done = run_mpisim(["program", "run", "step.h5", "--set", "network.contention=false"])
    assert done.rc == 2
    assert done.errors == [
        "mpisim: error: --set network.contention=false needs a network: --cluster NAME"
    ]
