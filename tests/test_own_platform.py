"""A user's own platform: what is fitted, what stays with the calibration that comes along."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpisim.base.errors import InputError, UsageError
from mpisim.experiment import NetworkChoice
from mpisim.prediction.network import nccl_model
from mpisim.program import Operation
from mpisim.topo import Cluster, find_cluster
from mpisim.topo.cluster import NcclChoice
from mpisim.topo.collectives.batches import Batch, batches
from mpisim.topo.collectives.calibrate import calibrate, calibrate_platform, one_platform
from mpisim.topo.collectives.calibration import (
    ANY,
    NUMBERS_OF_REGIME,
    CollectiveCalibration,
    OwnerCalibration,
    calibration_of,
    packaged_calibration,
)
from mpisim.topo.collectives.fit import owner_chain
from mpisim.topo.collectives.measurement import Measurement
from mpisim.topo.collectives.models import predictor
from mpisim.topo.collectives.platforms import platform_name, single_platform
from mpisim.topo.collectives.read import read
from mpisim.topo.nccl import Factors, Nccl, Shape
from mpisim.topo.nccl.shape import REGIMES
from mpisim.topo.nccl_system import cluster_system

SIZES = [1 << k for k in range(10, 34, 3)]
LARGE = np.array([1e9])
H100 = ("dgx-h100", "hopper", ANY)
SLOW = {"bandwidth_inside": 0.6, "latency_inside": 2.0, "bandwidth_across": 0.5}


def measured(
    *groups: tuple[int, int],
    cluster: str = "dgx-h100",
    name: str = "mine",
    operations: tuple[Operation, ...] = (Operation.ALL_REDUCE,),
) -> list[Batch]:
    """What a machine that is slower by known factors takes."""
    machine = find_cluster(cluster)
    base = calibration_of(packaged_calibration(), (str(machine.nccl.platform), ANY)).numbers
    model = Nccl(cluster_system(machine), factors=Factors(**(base | SLOW)))
    rows = []
    for operation in operations:
        for gpus, nodes in groups:
            shape = Shape.regular(nodes, gpus // nodes, model.system)
            times = model.seconds_of(operation, np.array(SIZES, float), shape)
            rows += [
                Measurement(
                    operation,
                    size,
                    time,
                    gpus,
                    nodes,
                    machine.gpu,
                    "",
                    "InfiniBand",
                    f"{operation.name} {gpus} on {nodes}",
                    "my.log",
                    1,
                )
                for size, time in zip(SIZES, times.tolist(), strict=True)
            ]
    return batches(rows, single_platform(name, machine))[0]


def own(*groups: tuple[int, int], name: str = "mine", **more: str) -> CollectiveCalibration:
    table = calibrate_platform(name, measured(*groups, name=name, **more), "all")  # type: ignore[arg-type]
    return CollectiveCalibration({name: table}, "mine.toml")


class TestFit:
    def test_one_node_says_nothing_of_the_network(self) -> None:
        calibration = own((8, 1))
        assert set(calibration.tables["mine"].numbers) == set(NUMBERS_OF_REGIME["inside"])
        found, shipped = (
            calibration_of(calibration, H100),
            calibration_of(packaged_calibration(), H100),
        )
        assert found.numbers["bandwidth_inside"] < 0.75 < shipped.numbers["bandwidth_inside"]
        for name in NUMBERS_OF_REGIME["across"]:
            assert found.numbers[name] == shipped.numbers[name]
        sizes = np.array([1e3, 1e6, 1e9])
        assert found.error(sizes, "across").tolist() == shipped.error(sizes, "across").tolist()

    def test_several_nodes_say_nothing_of_one(self) -> None:
        found, shipped = (
            calibration_of(own((16, 2)), H100),
            calibration_of(packaged_calibration(), H100),
        )
        for name in NUMBERS_OF_REGIME["inside"]:
            assert found.numbers[name] == shipped.numbers[name]
        assert found.numbers["bandwidth_across"] < shipped.numbers["bandwidth_across"]
        assert found.error(LARGE, "inside") == shipped.error(LARGE, "inside")

    def test_known_factors_are_found(self) -> None:
        found = calibration_of(own((8, 1), (4, 1), (16, 2), (32, 4)), H100)
        for name, value in SLOW.items():
            assert found.numbers[name] == pytest.approx(value, rel=0.1), name

    def test_one_set_up_is_no_surer_than_what_is_behind(self) -> None:
        shipped = calibration_of(packaged_calibration(), H100)
        one, two = (
            calibration_of(own((8, 1)), H100),
            calibration_of(own((8, 1), (4, 1), (2, 1)), H100),
        )
        assert one.error(LARGE, "inside") >= shipped.error(LARGE, "inside")
        # The shipped numbers were far off on the only rows there are.
        assert one.error(LARGE, "inside") > two.error(LARGE, "inside")

    def test_sizes_without_rows_have_the_errors_behind(self) -> None:
        small = [
            replace(each, bytes=each.bytes[:3], seconds=each.seconds[:3], rows=each.rows[:3])
            for each in measured((8, 1), (4, 1))
        ]
        table = calibrate_platform("mine", small, "all")
        found, shipped = (
            calibration_of(CollectiveCalibration({"mine": table}, ""), H100),
            calibration_of(packaged_calibration(), H100),
        )
        assert found.error(LARGE, "inside") == shipped.error(LARGE, "inside")
        assert found.numbers["bandwidth_inside"] == pytest.approx(
            shipped.numbers["bandwidth_inside"], rel=0.1
        )

    def test_without_a_cluster_the_measurements_tell_it(self) -> None:
        row = Measurement(
            Operation.ALL_REDUCE,
            1 << 30,
            5e-3,
            8,
            1,
            "NVIDIA H100 80GB HBM3",
            "",
            "none",
            "c",
            "my.log",
            1,
        )
        ((batch,), _) = batches([row], single_platform("mine", None))
        assert owner_chain(batch) == ("mine", "dgx-h100", "hopper", ANY)

    def test_the_network_of_a_machine_without_a_platform_is_its_familys(self) -> None:
        cluster = replace(find_cluster("dgx-h100"), nccl=NcclChoice())
        row = measured((16, 2))[0].rows[0]
        ((batch,), _) = batches([row], single_platform("mine", cluster))
        assert owner_chain(batch) == ("mine", "hopper-infiniband", "hopper", ANY)

    def test_mixed_machines_are_refused(self) -> None:
        rows = measured((8, 1)) + measured((8, 1), cluster="dgx-a100")
        with pytest.raises(InputError, match="'mine' has rows of ampere and hopper GPUs"):
            calibrate_platform("mine", rows, "all")

    def test_measurements_of_another_machine_are_left_out(self) -> None:
        row = measured((8, 1))[0].rows[0]
        for cluster, message in (
            (
                "dgx-a100",
                "my.log: the GPUs are 'h100-sxm', of the architecture hopper; those of "
                "the cluster are 'a100-sxm', of ampere",
            ),
            ("a100-4gpu", "my.log: 8 GPUs on 1 nodes; the cluster has 4 a node"),
        ):
            _, skipped = batches([row], single_platform("mine", find_cluster(cluster)))
            assert skipped == {message: 1}

    def test_racks_are_nodes(self) -> None:
        row = replace(measured((8, 1))[0].rows[0], gpu="NVIDIA GB200", gpus=16, nodes=4)
        ((batch,), _) = batches([row], single_platform("mine", find_cluster("gb200-nvl72")))
        assert (batch.shape.nodes, batch.regime) == (1, "inside")

    def test_one_platform(self) -> None:
        assert one_platform(measured((8, 1), (16, 2))) == "mine"
        assert one_platform(measured((8, 1)) + measured((8, 1), name="other")) is None
        assert one_platform([]) is None

    def test_outputs_of_one_and_of_several_nodes_are_of_one_machine(self) -> None:
        logs = Path(__file__).parent / "nccl_logs"
        rows, _ = read([logs / "all_reduce_8.log", logs / "alltoall_16.json"])
        found, _ = batches(rows)
        assert {each.platform.name for each in found} == {"dgx-h100", "hopper-unknown"}
        assert one_platform(found) == "dgx-h100"
        stated = batches([replace(each, across="32x100G EFAv2") for each in rows])[0]
        assert one_platform(stated) == "p5"
        others, _ = batches([*rows, *read([logs / "old.log"])[0]])
        assert one_platform(others) is None

    @pytest.mark.parametrize("name", ["any", "a b", "", "deepep", "x.y"])
    def test_names(self, name: str) -> None:
        with pytest.raises(UsageError, match="--platform is"):
            single_platform(name, None)

    def test_a_name_from_a_file(self) -> None:
        assert platform_name("clusters/my h100.v2.toml") == "my-h100-v2"


class TestServing:
    def test_a_file_survives(self) -> None:
        calibration = own((8, 1), (4, 1), (16, 2))
        read = CollectiveCalibration.parse(calibration.text(), "mine.toml")
        assert read.tables == calibration.tables
        assert "that comes with" in calibration.text()

    def test_two_platforms_need_a_name(self) -> None:
        tables = own((8, 1)).tables | own((8, 1), name="other").tables
        both = CollectiveCalibration(tables, "both.toml")
        with pytest.raises(InputError, match="has the platforms mine, other"):
            calibration_of(both, H100)
        assert "[other]" in calibration_of(both, ("other", "hopper", ANY)).sources["inside"]

    def test_another_architecture_is_refused(self) -> None:
        with pytest.raises(
            InputError, match="measured on 'hopper' GPUs, and the cluster's are 'am"
        ):
            calibration_of(own((8, 1)), ("dgx-a100", "ampere", ANY))

    def test_kernels_of_another_library_keep_their_own(self) -> None:
        found = calibration_of(own((8, 1)), ("deepep-normal", "deepep"))
        assert found.sources["across"].endswith("[deepep-normal]")

    def test_tables_of_published_platforms_serve_as_they_are(self) -> None:
        for owner, table in packaged_calibration().tables.items():
            found = calibration_of(
                packaged_calibration(), (owner, ANY) if table.form == "nccl" else (owner,)
            )
            assert table.numbers.items() <= found.numbers.items()
            for regime in REGIMES:
                if table.covers(regime):
                    assert found.error(LARGE, regime) == table.error(LARGE, regime)
                    assert found.sources[regime] == f"{packaged_calibration().source} [{owner}]"
                else:  # measured on one node alone
                    assert found.sources[regime] == f"{packaged_calibration().source} [{ANY}]"

    def test_platforms_that_were_measured_on_one_node_alone(self) -> None:
        """Of several platforms, none with a network: across nodes ours serve."""
        other = measured((8, 1), (4, 1), cluster="dgx-a100", name="a")
        rows = measured((8, 1), (4, 1)) + [
            replace(each, platform=replace(each.platform, name="a")) for each in other
        ]
        calibration = CollectiveCalibration(dict(calibrate(rows, "all")), "two.toml")
        found = calibration_of(calibration, ("mine", "dgx-h100", "hopper", ANY))
        assert found.sources["inside"] == "two.toml [mine]"
        assert found.sources["across"] == f"{packaged_calibration().source} [dgx-h100]"

    def test_a_file_that_has_no_table_for_a_machine(self) -> None:
        table = packaged_calibration().tables["hopper"]
        with pytest.raises(InputError, match="has no table for dgx-a100, ampere, any"):
            calibration_of(
                CollectiveCalibration({"hopper": table}, "x.toml"), ("dgx-a100", "ampere", ANY)
            )

    def test_predictions_state_the_errors_of_their_regime(self) -> None:
        calibration = own((8, 1), (4, 1), (2, 1))
        predict = predictor("nccl", calibration, [])
        inside, across = (predict(measured(group)[0])[1] for group in ((8, 1), (16, 2)))
        assert inside is not None
        assert across is not None
        assert inside[-1] < across[-1]


class TestExperiments:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "mine.cal.toml"
        path.write_text(own((8, 1), (4, 1), (2, 1)).text())
        return path

    def test_a_single_platform_serves_every_cluster_of_its_kind(self, file: Path) -> None:
        choice = NetworkChoice(calibration=file.name)
        cluster = find_cluster("dgx-h100")
        nccl, factor = nccl_model(cluster, choice, file.parent)
        shipped, before = nccl_model(cluster, NetworkChoice())
        one, two = (Shape.regular(nodes, 8, nccl.system) for nodes in (1, 2))
        for shape, slower in ((one, 1.3), (two, 1.0)):
            ours_, theirs = (
                model.choose(Operation.ALL_REDUCE, 1 << 30, shape).seconds(1 << 30)
                for model in (shipped, nccl)
            )
            assert theirs / ours_ > slower - 0.01
        assert factor(1e9, "across") == before(1e9, "across")
        assert factor(1e9, "inside").error != before(1e9, "inside").error
        # Without a regime the less certain of the two.
        assert factor(1e9).error == max(factor(1e9, each).error for each in ("inside", "across"))

    def test_of_several_the_cluster_names_one(self, file: Path) -> None:
        text = file.read_text() + own((8, 1), name="other").text().split("\n\n", 1)[1]
        file.write_text(text)
        choice = NetworkChoice(calibration=str(file))
        cluster: Cluster = replace(find_cluster("dgx-h100"), nccl=NcclChoice(platform="other"))
        assert "[other]" in nccl_model(cluster, choice)[1](1e6, "inside").source
        with pytest.raises(InputError, match="name one of them"):
            nccl_model(find_cluster("dgx-h100"), choice)


def test_old_files_are_read() -> None:
    bins = "[{ decade = 6, rows = 1, bias = 0, median = 0, p90 = 0.1 }]"
    text = (
        '[any]\nform = "nccl"\nnumbers = { bandwidth_inside = 0.9 }\nsource = "s"\nfiles = []\n'
        f'split = "all"\ncurves = 1\nrows = 1\nheld_out = "set-ups"\nerrors = {bins}\n'
    )
    table: OwnerCalibration = CollectiveCalibration.parse(text, "old.toml").tables[ANY]
    assert table.covers("inside")
    assert table.covers("across")
    assert table.error(LARGE, "across") == table.error(LARGE)
