"""RCCL's choices against its source and its own reports, its times against published ones."""

from __future__ import annotations

from dataclasses import replace
from math import log, log10

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpisim.base.kinds import Operation
from mpisim.base.presets import packaged
from mpisim.cli import main
from mpisim.topo import find_cluster
from mpisim.topo.nccl import Choice, Nccl, Settings, Shape, System
from mpisim.topo.nccl.constants import LL, LL128, PROTOCOLS, SIMPLE
from mpisim.topo.nccl.rccl import rccl_arch, rccl_constants, runs_two_shot, size_ranges
from mpisim.topo.nccl_system import cluster_system

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
US = 1e-6

ALL_REDUCE = Operation.ALL_REDUCE
COLLECTIVES = (
    ALL_REDUCE,
    Operation.ALL_GATHER,
    Operation.REDUCE_SCATTER,
    Operation.BROADCAST,
    Operation.REDUCE,
)


def system(cluster: str, version: tuple[int, ...]) -> System:
    return cluster_system(find_cluster(cluster), version)


def choice(
    machine: System, nodes: int, bytes: int, operation: Operation = ALL_REDUCE, **variables: str
) -> Choice:
    model = Nccl(machine, Settings.of({f"NCCL_{key}": each for key, each in variables.items()}))
    return model.choose(operation, bytes, Shape.regular(nodes, 8, machine))


def name(found: Choice) -> str:
    return f"{found.algorithm} {found.protocol}"


def by_size(
    arch: str, version: tuple[int, ...], nodes: int, bytes: int, operation: Operation
) -> str:
    """Return the protocol of the last range that holds a size."""
    shape = Shape(ranks=8 * nodes, nodes=nodes, max_per_node=8, min_per_node=8)
    found = ""
    for each in size_ranges(operation, shape, rccl_constants(arch, version)):
        if each.above < bytes <= each.most:
            found = PROTOCOLS[each.protocol]
    return found


class TestProtocolBySize:
    """`llProtoRanges` of src/graph/tuning.cc, in bytes."""

    @pytest.mark.parametrize(
        ("arch", "version", "nodes", "bytes", "protocol"),
        [
            ("gfx942", (2, 26), 2, 1 * MiB, "ll"),
            ("gfx942", (2, 26), 2, 1 * MiB + 1, "ll128"),
            ("gfx942", (2, 26), 2, 9 * MiB, "ll128"),
            ("gfx942", (2, 26), 2, 9 * MiB + 1, "simple"),
            ("gfx942", (2, 28), 2, 512 * KiB, "ll"),
            ("gfx942", (2, 28), 2, 512 * KiB + 1, "ll128"),
            ("gfx942", (2, 28), 2, 4415058, "simple"),
            ("gfx950", (2, 26), 2, 131071, "ll"),
            ("gfx950", (2, 26), 2, 131072, "ll128"),
            ("gfx950", (2, 28), 2, 256 * KiB, "ll"),
            ("gfx950", (2, 28), 2, 70640910, "ll128"),
            ("gfx950", (2, 28), 2, 70640911, "simple"),
            # 3.8 times as many bytes on more than two nodes.
            ("gfx942", (2, 26), 3, 34 * MiB, "ll128"),
            ("gfx942", (2, 26), 3, 35 * MiB, "simple"),
        ],
    )
    def test_all_reduce(
        self, arch: str, version: tuple[int, ...], nodes: int, bytes: int, protocol: str
    ) -> None:
        assert by_size(arch, version, nodes, bytes, ALL_REDUCE) == protocol

    @pytest.mark.parametrize(
        ("part", "protocol"),
        [(96 * KiB, "ll"), (96 * KiB + 1, "ll128"), (5046272, "ll128"), (5046273, "simple")],
    )
    def test_all_gather_counts_the_bytes_of_a_rank(self, part: int, protocol: str) -> None:
        assert by_size("gfx942", (2, 27), 2, 16 * part, Operation.ALL_GATHER) == protocol

    def test_older_gpus_and_versions_leave_it_to_the_fastest_pair(self) -> None:
        shape = Shape(ranks=16, nodes=2, max_per_node=8, min_per_node=8)
        for arch, version in (("gfx90a", (2, 28)), ("gfx942", (2, 25))):
            assert not size_ranges(ALL_REDUCE, shape, rccl_constants(arch, version))

    def test_only_gpus_of_the_tables_have_them(self) -> None:
        families = ("cdna1", "cdna2", "cdna3", "cdna4", "hopper", "")
        assert [rccl_arch(each) for each in families] == [
            "gfx908",
            "gfx90a",
            "gfx942",
            "gfx950",
            "",
            "",
        ]


class TestChoice:
    def test_what_rccl_itself_reports_on_two_nodes(self) -> None:
        # ROCm/rocm-systems pull request 9406, table "before", 2 nodes of 8 MI350X.
        mi350 = system("mi355x-8gpu", (2, 28))
        assert name(choice(mi350, 2, 32 * MiB)) == "tree ll128"
        assert name(choice(mi350, 2, 64 * MiB)) == "ring ll128"
        assert name(choice(mi350, 2, 128 * MiB)) == "ring simple"

    def test_kernels_from_each_gpu_to_each(self) -> None:
        mi300 = system("mi300x-8gpu", (2, 22))
        for bytes in (1 * KiB, 512 * KiB - 4):
            assert name(choice(mi300, 1, bytes)) == "two-shot ll"
        for bytes in (512 * KiB, 16 * MiB):
            assert name(choice(mi300, 1, bytes)) == "two-shot simple"
        assert name(choice(mi300, 1, 512)) == "ring ll"
        assert name(choice(mi300, 1, 16 * MiB + 4)) == "ring simple"
        assert choice(mi300, 1, MiB, Operation.ALL_GATHER).algorithm == "ring"

    def test_those_kernels_are_of_whole_nodes_and_of_some_versions(self) -> None:
        eight = Shape(ranks=8, nodes=1, max_per_node=8, min_per_node=8)
        four = Shape(ranks=4, nodes=1, max_per_node=4, min_per_node=4)
        assert runs_two_shot(ALL_REDUCE, eight, rccl_constants("gfx942", (2, 27)))
        assert not runs_two_shot(ALL_REDUCE, four, rccl_constants("gfx942", (2, 27)))
        assert not runs_two_shot(ALL_REDUCE, eight, rccl_constants("gfx942", (2, 28)))
        assert not runs_two_shot(ALL_REDUCE, eight, rccl_constants("gfx90a", (2, 27)))

    def test_only_what_variables_name_is_called_better(self) -> None:
        mi300 = system("mi300x-8gpu", (2, 22))
        model = Nccl(mi300, Settings.of({}))
        eight = Shape.regular(1, 8, mi300)
        every = {name(each): each for each in model.candidates(ALL_REDUCE, 512 * KiB, eight)}
        chosen, other = every["two-shot simple"], every["two-shot ll"]
        # LL of the same kernels would be faster here, but no variable asks for it.
        assert model.clearly_slower(chosen.seconds(512 * KiB), other.seconds(512 * KiB))
        assert model.better(ALL_REDUCE, 512 * KiB, eight) is None

    def test_comm_names_no_choice_without_variables(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["comm", "all_reduce", "--cluster", "mi300x", "--size", "512K"])
        out = capsys.readouterr().out
        assert "two-shot" in out
        assert "By this model" not in out

    @pytest.mark.parametrize("variables", [{"ALGO": "Ring"}, {"PROTO": "LL"}])
    def test_variables_of_nccl_win(self, variables: dict[str, str]) -> None:
        mi300 = system("mi300x-8gpu", (2, 22))
        assert choice(mi300, 1, 64 * KiB, **variables).algorithm in ("ring", "tree")

    def test_a_protocol_that_was_asked_for_runs_at_all_sizes(self) -> None:
        mi300 = system("mi300x-8gpu", (2, 27))
        for bytes in (4 * KiB, 4 * MiB, 1 * GiB):
            assert choice(mi300, 2, bytes, PROTO="Simple").protocol == "simple"

    def test_the_maker_of_the_gpu_decides(self) -> None:
        mi300 = system("mi300x-8gpu", (2, 27))
        assert mi300.rccl == "gfx942"
        as_nccl = replace(mi300, rccl="")
        assert name(choice(mi300, 2, 4 * MiB)) == "tree ll128"
        assert choice(as_nccl, 1, 64 * KiB).algorithm != "two-shot"
        assert not system("dgx-h100", (2, 27)).rccl


class TestTime:
    def test_a_few_bytes_on_8_mi300x(self) -> None:
        # 12 us and 14 hops of 0.8; 23.05 to 23.4 us measured (github:hisohara/ai-scripts).
        found = choice(system("mi300x-8gpu", (2, 22)), 1, 128)
        assert found.seconds(128) == pytest.approx(23.2 * US, rel=0.01)

    # github:prasad-nair-amd/alibaba, README.md, its test 11, RCCL 2.27.7: sizes picked with all 23
    # of the curve at hand, among those within 10 %; the next test has others.
    @pytest.mark.parametrize(
        ("bytes", "measured"),
        [(4 * KiB, 46.9), (64 * KiB, 50.0), (256 * KiB, 60.2), (1 * MiB, 69.0), (4 * MiB, 88.6)],
    )
    def test_16_gpus_of_gfx950_by_the_tables_alone(self, bytes: int, measured: float) -> None:
        found = choice(system("mi355x-8gpu", (2, 27)), 2, bytes)
        assert found.seconds(bytes) == pytest.approx(measured * US, rel=0.1)

    # The same curve, by the tables alone too. 128 MiB reads back: `ring-simple-across` was checked
    # with it (data/rccl.toml). 32 and 64 MiB, +46 and +34 %, are where the tables leave LL128: a
    # known miss (docs/collectives.md). -10 to +50 % was chosen with the curve at hand. The stated
    # error is of nine of ten sizes of set-ups of MI350s that a fit did not see, this one too.
    @pytest.mark.parametrize(
        ("bytes", "measured"),
        [
            *((16, 37.35), (256, 38.51), (1 * KiB, 42.14), (16 * KiB, 46.65), (512 * KiB, 62.27)),
            *((2 * MiB, 76.38), (8 * MiB, 110.24), (16 * MiB, 177.14), (32 * MiB, 262.18)),
            *((64 * MiB, 439.32), (128 * MiB, 860.65), (256 * MiB, 1355.74), (1 * GiB, 5302.0)),
            (16 * GiB, 83456.7),
        ],
    )
    def test_the_rest_of_that_curve_is_within_the_stated_error(
        self, bytes: int, measured: float
    ) -> None:
        found = choice(system("mi355x-8gpu", (2, 27)), 2, bytes).seconds(bytes)
        stated = {
            each["decade"]: each["p90"]
            for each in packaged("calibration/collectives.toml")["mi350"]["errors"]
        }
        assert abs(log(found / (measured * US))) < stated[int(log10(bytes))]
        assert 0.9 * measured * US < found < 1.5 * measured * US

    def test_trees_leave_ll_no_later_than_it_pays(self) -> None:
        # AMD's limits, fitted on AMD's machines: LL128 from 1 MiB on, of two nodes of MI300X.
        mi300 = system("mi300x-8gpu", (2, 26))
        model, two = Nccl(mi300, Settings.of({})), Shape.regular(2, 8, mi300)
        every = {name(each): each for each in model.candidates(ALL_REDUCE, 4 * MiB, two)}
        assert every["tree ll128"].seconds(4 * MiB) < every["tree ll"].seconds(4 * MiB)

    @settings(max_examples=60, deadline=None)
    @given(
        cluster=st.sampled_from(["mi300x-8gpu", "mi355x-8gpu", "frontier"]),
        operation=st.sampled_from(COLLECTIVES),
        nodes=st.sampled_from([1, 2, 4]),
        power=st.integers(4, 32),
        more=st.floats(1.01, 8),
    )
    def test_more_bytes_are_never_faster_within_one_pair(
        self, cluster: str, operation: Operation, nodes: int, power: int, more: float
    ) -> None:
        machine = system(cluster, (2, 27))
        model = Nccl(machine, Settings.of({}))
        shape = Shape.regular(nodes, 8, machine)
        less, many = 1 << power, int((1 << power) * more)
        for small in model.candidates(operation, less, shape):
            large = next(
                each
                for each in model.candidates(operation, many, shape)
                if name(each) == name(small)
            )
            assert small.seconds(less) <= large.seconds(many)

    @settings(max_examples=40, deadline=None)
    @given(
        cluster=st.sampled_from(["mi300x-8gpu", "mi355x-8gpu", "frontier"]),
        operation=st.sampled_from(COLLECTIVES),
        nodes=st.sampled_from([1, 2, 4]),
        power=st.integers(3, 34),
    )
    def test_what_is_chosen_may_run(
        self, cluster: str, operation: Operation, nodes: int, power: int
    ) -> None:
        machine = system(cluster, (2, 27))
        model = Nccl(machine, Settings.of({}))
        shape = Shape.regular(nodes, 8, machine)
        found = model.choose(operation, 1 << power, shape)
        assert found.protocol in (PROTOCOLS[LL], PROTOCOLS[LL128], PROTOCOLS[SIMPLE])
        names = [name(each) for each in model.candidates(operation, 1 << power, shape)]
        assert name(found) in names
        assert 0 < found.seconds(1 << power) < 60
