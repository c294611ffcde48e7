"""Saved programs are the runs that saved them: the same digest, report and options."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import GPT_STEP, TWO_NODES

from mpisim.base.errors import InputError
from mpisim.experiment import VariationChoice, load, load_any, read
from mpisim.formats import read_chakra, write_chakra
from mpisim.prediction.prepared import PreparedExperiment, prepare
from mpisim.prediction.prepared_program import PreparedProgram, prepare_program, saved_program
from mpisim.prediction.variation import with_changed_variation, with_variation
from mpisim.program import Program, ProgramBuilder, save
from mpisim.program import load as load_program
from mpisim.simulate import simulate

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

pytestmark = pytest.mark.two_processes

Run = Callable[..., Any]

SHARED = (
    TWO_NODES.replace("hidden = 1024", "hidden = 4096")
    .replace("seq_len = 512", "seq_len = 2048")
    .replace("tp = 4", "tp = 2")
    .replace("dp = 4", "dp = 8")
)
"""Communications meet on links."""

PACKAGED = (
    "distsim-bert-large-2m2p4d-16-a40",
    "echo-gpt-70b-96-h800",
    "korthikanti-22b-8-a100",
    "lin-dlrm-default-4-a100",
    "lin-gpt2-4-gv100",
    "llama3-8b-8-h100",
    "simai-gpt3-13b-512-a100",
    "simai-llama-65b-512-a100",
    "triosim-p1-densenet121-ddp",
    "triosim-p2-gpt2-ddp",
    "triosim-p2-vgg16-pp",
    "triosim-p3-resnet101-pp",
)


def saved(case: PreparedExperiment | PreparedProgram, path: Path) -> Path:
    """Save the program of a case."""
    save(saved_program(case), path, overwrite=True)
    return path


def digest(case: Any, **options: Any) -> str:
    """Return the digest of a run."""
    results = simulate(case, **options)
    assert results is not None
    return results.digest


def again(path: Path, *changes: str) -> PreparedExperiment | PreparedProgram:
    """Return a saved program made ready."""
    _, asked = load_any(path, changes)
    return prepare_program(asked)  # type: ignore[arg-type]


@pytest.mark.mpi
@pytest.mark.parametrize("name", PACKAGED)
def test_a_saved_program_is_its_run(comm: Intracomm, name: str, tmp_path: Path) -> None:
    case = prepare(load(name)[1])
    path = saved(case, tmp_path / "step.h5")
    found = again(path)
    assert isinstance(found, PreparedExperiment)
    assert not found.notes
    results = simulate(found, comm)
    assert (results is None) == (comm.rank > 0)
    if results is not None:
        assert results.digest == digest(case)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a saved program of 16 ranks."""
    return saved(prepare(read(SHARED, "e.toml")), tmp_path_factory.mktemp("small") / "step.h5")


EFFECTIVE = (
    ["network.contention=false"],
    ["network.model=alpha-beta"],
    ["network.algorithm=ring", "cluster.nic_bandwidth=100 Gb/s"],
    ["network.nccl.NCCL_PROTO=ll"],
    ["network.changes.'links.node0.nic3->*.bandwidth'=50 %"],
    ["cluster.link_bandwidth=100 GB/s"],
    ["cluster.pcie_bandwidth=10 GB/s"],
    ["cluster.nics=2"],
    ["overlap.model=off"],
    ["overlap.model=coupled", "overlap.passes=3"],
    ["variation.kernels=0.05"],
    ["variation.kernels=0.05", "variation.seed=9"],
    ["variation.gpus=0.05"],
    ["variation.slowest=false"],
    ["variation.speeds.3=0.5"],
)


@pytest.mark.parametrize("changes", EFFECTIVE, ids=lambda each: each[0])
def test_changes_are_those_of_the_experiment(small: Path, changes: list[str]) -> None:
    expected = digest(prepare(read(SHARED, "e.toml", changes)))
    assert digest(again(small, *changes)) == expected
    assert expected != digest(again(small))


@pytest.mark.parametrize("changes", EFFECTIVE[-6:], ids=lambda each: "-".join(each))
def test_what_was_saved_can_be_taken_back(changes: list[str], tmp_path: Path) -> None:
    """A program saved with variation or without overlap is the plain one where these are unset."""
    plain = digest(prepare(read(SHARED, "e.toml")))
    path = saved(prepare(read(SHARED, "e.toml", changes)), tmp_path / "step.h5")
    back = {
        "variation.kernels": "0",
        "variation.gpus": "0",
        "variation.slowest": "true",
        "variation.speeds.3": "1.0",
        "overlap.model": "static",
    }
    unset = [f"{key}={value}" for key, value in back.items() if f"{key}=" in changes[0]]
    assert digest(again(path, *changes)) == digest(again(path)) != plain
    assert digest(again(path, *unset)) == plain


CHOICES = st.builds(
    VariationChoice,
    kernels=st.sampled_from([0.0, 0.1]),
    gpus=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 9),
    speeds=st.dictionaries(st.sampled_from("0123"), st.sampled_from([0.3, 0.9, 2.0])),
)


@given(CHOICES, CHOICES, st.integers(0, 5))
def test_one_choice_takes_the_place_of_another(
    before: VariationChoice, after: VariationChoice, sample: int
) -> None:
    builder = ProgramBuilder()
    rows = builder.table("all")
    rows.kernel("work", 0, 10**6)
    builder.add_table(rows.build())
    for _ in range(4):
        builder.add_rank(0)
    program = builder.build()
    expected = with_variation(program, after, sample)
    found = with_changed_variation(with_variation(program, before), before, after, sample)
    assert found.speed.tolist() == expected.speed.tolist()
    assert found.jitter == expected.jitter


def test_other_seeds_are_those_of_the_experiment(small: Path) -> None:
    changes = ["variation.kernels=0.05", "variation.gpus=0.02"]
    results = [
        simulate(case, seeds=3)
        for case in (prepare(read(SHARED, "e.toml", changes)), again(small, *changes))
    ]
    steps = [each.attributes["sampled_steps"] for each in results if each is not None]
    assert steps[0] == steps[1]
    assert len(set(steps[0])) == 3


def test_a_program_saved_again_is_the_same(small: Path, tmp_path: Path) -> None:
    changes = ["network.contention=false", "variation.speeds.3=0.5"]
    first = again(small, *changes)
    second = again(saved(first, tmp_path / "again.h5"))
    assert digest(second) == digest(first)
    assert second.experiment.network == first.experiment.network


def test_chakra_and_back_is_the_run(small: Path, tmp_path: Path) -> None:
    write_chakra(load_program(small), tmp_path / "et")
    save(read_chakra([tmp_path / "et"]), tmp_path / "back.h5")
    assert digest(again(tmp_path / "back.h5")) == digest(again(small))


def test_files_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpisim.data import text

    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.toml").write_text(text("clusters/dgx-h100.toml"))
    (tmp_path / "own" / "e.toml").write_text(SHARED.replace('"dgx-h100"', '"own/mine.toml"'))
    monkeypatch.chdir(tmp_path)
    case = prepare(load("own/e.toml")[1])
    path = saved(case, tmp_path / "step.h5")
    expected = digest(case)
    monkeypatch.chdir("/")
    assert digest(again(path)) == expected


OFFLOADED = GPT_STEP.format(
    model="",
    plan="""[plan]
global_batch = 16
micro_batch = 1
zero = 3
[plan.recompute]
granularity = "full"
[plan.offload]
{offload}
[framework]
dp_style = "fsdp"
""",
)
"""Copies between GPU and host."""


@pytest.mark.parametrize("offload", ["activations = 3", "optimizer = 1.0\nparameters = true"])
def test_copies_to_the_host_have_the_pace_of_the_link(offload: str, tmp_path: Path) -> None:
    changes = ["scale.pcie_bandwidth=0.25"]
    text = OFFLOADED.format(offload=offload)
    path = saved(prepare(read(text, "e.toml")), tmp_path / "step.h5")
    expected = digest(prepare(read(text, "e.toml", changes)))
    found = again(path, *changes)
    assert isinstance(found, PreparedExperiment)
    assert not found.notes
    assert digest(found) == expected != digest(again(path))


def test_on_another_cluster_kernels_keep_their_times(small: Path) -> None:
    found = again(small, "cluster.preset=dgx-a100")
    assert isinstance(found, PreparedExperiment)
    assert any("kernels' times are those of the program" in each for each in found.notes)
    assert digest(found) != digest(again(small))
    assert found.experiment.cluster.nodes == 2


def test_rows_of_the_file_count_and_what_they_lack_is_said(small: Path, tmp_path: Path) -> None:
    program = load_program(small)
    table = program.tables[0]
    assert table is not None
    slower = table.replace(
        duration=np.where(table.is_communication, table.duration, 2 * table.duration)
    )
    save(program.replace(tables=(slower, *program.tables[1:])), tmp_path / "edited.h5")
    found = again(tmp_path / "edited.h5")
    assert isinstance(found, PreparedExperiment)
    assert any("kernels are not as the experiment" in each for each in found.notes)
    results = simulate(found)
    plain = simulate(again(small))
    assert results is not None
    assert plain is not None
    assert results.step_time > 1.5 * plain.step_time


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize("nprocs", [1, 2])
def test_the_command_line(run_mpisim: Run, tmp_path: Path, nprocs: int) -> None:
    (tmp_path / "e.toml").write_text(SHARED)
    alone = ["--set", "network.contention=false", "--set", "variation.gpus=0.02"]
    first = run_mpisim(["run", "e.toml", *alone, "--save-program", "step.h5", "--json", "run.json"])
    assert first.rc == 0, first.stderr
    done = run_mpisim(["run", "step.h5", "--json", "program.json", "-o", "kept.h5"], nprocs=nprocs)
    assert done.rc == 0, done.stderr
    again = run_mpisim(["program", "run", "step.h5"], nprocs=nprocs)
    # Of processes, and of where the result is kept, the reports differ.
    said, as_said, as_before = (
        [line for line in each.stdout.splitlines() if not re.match("ranks |.* keeps it for", line)]
        for each in (done, again, first)
    )
    assert said == as_said == as_before
    assert "kept.h5 keeps it for" in done.stdout
    assert "-o run.h5 keeps it for" in again.stdout
    figures = [json.loads((tmp_path / name).read_text()) for name in ("run.json", "program.json")]
    for each in figures:
        for key in ("experiment", "n_processes", "rounds"):
            each.pop(key)
        for rank in each["ranks"]:
            del rank["process"]
    assert figures[0] == figures[1]
    assert run_mpisim(["report", "kept.h5"]).stdout == done.stdout


def test_an_experiment_of_a_program(call_mpisim: Run, small: Path, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(
        f'title = "slow"\n[workload]\nprogram = "{small}"\n[variation]\nspeeds = {{"3" = 0.5}}\n'
    )
    done = call_mpisim(["run", "w.toml", "--json", "w.json"])
    assert done.rc == 0, done.stderr
    found = json.loads((tmp_path / "w.json").read_text())
    assert found["digest"] == digest(again(small, "variation.speeds.3=0.5"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["network.modl=nccl"], r"unknown key 'modl' in \[network\] \(did you mean 'model'\?\)"),
        (["network.model=ring"], "'network.model' is 'ring'.*allowed: nccl, alpha-beta"),
        (["netwrk.model=nccl"], r"unknown key 'netwrk' .*\(did you mean 'network'\?\)"),
        (["plan.tp=2"], "key 'plan.tp' is given, but the program file fixes it"),
        (["model.layers=2"], "key 'model.layers' is given, but the program file fixes it"),
        (["kernels.model=roofline"], "'kernels.model' is given, but the program file fixes it"),
        (["calibration.file=ours"], "'calibration.file' is given, but the program file fixes"),
        (["cluster.gpus=3"], "key 'cluster.gpus' is 3, but the program file fixes it: 16 ranks"),
        (["cluster.nodes=1"], "cluster.nodes is 1; the program's 16 ranks need 2 nodes of 8 GPUs"),
        (["cluster.nodes=two"], "'cluster.nodes' is 'two'; it must be an integer"),
        (["cluster.preset=dgx-h10"], "unknown cluster 'dgx-h10'"),
        (["cluster.preset=3"], "'cluster.preset' is 3; it must be a text"),
        (["cluster=3"], "key 'cluster' is 3; it must be a table"),
        (["variation.speeds.16=0.5"], "names rank 16; there are ranks 0 to 15"),
        (["network.model=alpha-beta", "network.nccl.NCCL_PROTO=ll"], "nccl is given; model = 'alp"),
        (["network.model=alpha-beta", "cluster.nics=4"], "cluster.nics is given; network.model"),
        (["network.nccl=3"], "'network.nccl' is 3"),
        (["network"], "not of the form TABLE.KEY=VALUE"),
    ],
)
def test_what_cannot_be_is_one_line(small: Path, changes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        again(small, *changes)
    assert "\n" not in str(error.value)


# --- programs of no experiment -----------------------------------------------------------------


@pytest.fixture(scope="module")
def bare(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the program of 16 ranks that does not say which experiment it is of."""
    program = load_program(small)
    path = tmp_path_factory.mktemp("bare") / "bare.h5"
    save(program.replace(attributes={"source": "SimAI"}), path)
    return path


@pytest.mark.parametrize("changes", EFFECTIVE, ids=lambda each: each[0])
def test_a_bare_program_takes_all_but_overlap(bare: Path, changes: list[str]) -> None:
    others = [each for each in changes if not each.startswith("overlap")]
    here = ["cluster.preset=dgx-h100"]
    if changes[0].startswith(("overlap.model=coupled", "overlap.passes")):
        with pytest.raises(InputError, match="has no effect: the program does not"):
            again(bare, *here, *changes)
        return
    found = again(bare, *here, *changes)
    assert isinstance(found, PreparedProgram)
    if others and changes[0] != "variation.slowest=false":
        # Without slowdown; at the pace that the program was saved with.
        same = ["variation.slowest=true"] if "gpus" not in changes[0] else []
        if not same:
            assert digest(found) != digest(again(bare, *here))
            return
        expected = prepare(read(SHARED, "e.toml", [*others, *same, "overlap.model=off"]))
        assert digest(found) == digest(expected)


def test_a_bare_program_says_what_it_rests_on(bare: Path) -> None:
    results = simulate(again(bare, "cluster.preset=dgx-h100", "variation.kernels=0.02"), seeds=2)
    assert results is not None
    said = results.attributes
    assert said["uncertainty"] > 0
    assert said["uncertainty_sources"]
    assert len(said["sampled_steps"]) == 2
    assert said["assumptions"][:2] == [
        "DGX H100: 8 H100 SXM5 a node, NVLink 4 and NVSwitch, one 400 Gb/s NIC a GPU",
        "2 nodes; neighbouring ranks share a node",
    ]
    assert any("random factors on kernels" in each for each in said["assumptions"])
    assert any("overlap" in each for each in said["not_modelled"])
    other = simulate(again(bare, "cluster.preset=dgx-h100", "network.model=alpha-beta"))
    assert other is not None
    assert "network.model = alpha-beta" in other.attributes["assumptions"]
    assert not any("contention = true" in each for each in other.attributes["assumptions"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["network.contention=false"], "network.contention needs a network: --cluster NAME"),
        (["cluster.nics=4"], "cluster.nics needs a network: --cluster NAME"),
        (["run.allow_oom=true"], "'run.allow_oom' has no effect: the program does not say what"),
        (["overlap.passes=3"], "'overlap.passes' has no effect"),
        (["variation.slowest=true"], "variation.slowest is true; the program does not say which"),
        (["plan.tp=3"], "the program file fixes it"),
    ],
)
def test_what_a_bare_program_has_no_use_for_is_refused(
    bare: Path, changes: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message) as error:
        again(bare, *changes)
    assert "\n" not in str(error.value)


def test_keys_need_a_cluster(call_mpisim: Run, bare: Path) -> None:
    done = call_mpisim(["program", "run", str(bare), "--set", "network.contention=false"])
    assert done.rc == 2
    assert done.errors == [
        f"mpisim: error: {bare}: network.contention needs a network: --cluster NAME"
    ]


def test_an_experiment_too_long_for_an_attribute_is_kept(tmp_path: Path) -> None:
    program = prepare(read(SHARED, "e.toml")).program
    long = {"text": "é" * 100_000}
    save(program.replace(attributes=long), tmp_path / "long.h5")
    assert load_program(tmp_path / "long.h5").attributes == long


def test_damage_is_one_line(small: Path, tmp_path: Path) -> None:
    program = load_program(small)

    def damaged(text: str) -> Program:
        return program.replace(attributes={"experiment": text})

    for text in ("", "[]", '{"tables": {}}', '{"tables": {"plan": 3}, "model": {}}'):
        save(damaged(text), tmp_path / "damaged.h5", overwrite=True)
        with pytest.raises(InputError, match=r"damaged.h5: ") as error:
            again(tmp_path / "damaged.h5")
        assert "\n" not in str(error.value)
