"""What a step costs: against sums by hand, on hardware of round numbers."""

from __future__ import annotations

import json
import re
from math import hypot
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpisim
from mpisim.base.errors import InputError
from mpisim.base.presets import packaged
from mpisim.cli import main
from mpisim.cost import Busy, ClusterPower, GpuPower, Prices, cluster_power, gpu_power, read_prices
from mpisim.cost.power import STATES, Uncertain, host_power, switch_ports
from mpisim.cost.prices import HOURS_OF_A_YEAR, price
from mpisim.cost.step import cost_from, cost_of_cluster
from mpisim.experiment import PriceChoice, load, read
from mpisim.kernels import find_gpu, gpu_name, gpu_names
from mpisim.topo import Cluster, find_cluster
from mpisim.topo.speeds import with_speeds

WATTS = {"idle": 100.0, "matrix": 700.0, "memory": 400.0, "communication": 200.0}


def known(value: float) -> Uncertain:
    return Uncertain(value, 0.0)


def a_cluster(n: int = 8) -> ClusterPower:
    gpu = GpuPower(700.0, {name: known(watts) for name, watts in WATTS.items()})
    return ClusterPower((gpu,), (n,), known(2000.0), known(160.0), known(40.0), known(1.25), ())


def rent(hour: float) -> Prices:
    return Prices(known(hour), known(0.1), None, False, "", "", ())


def test_energy_by_hand() -> None:
    # 10 s: 4 in products, 2 in other kernels, 3 in communications, 1 idle.
    busy = [Busy(8, 4.0, 2.0, 3.0)]
    cost = cost_from(a_cluster(), rent(24.0), busy, 10.0, 50_000, nodes=1)
    a_gpu = 4 * 700 + 2 * 400 + 3 * 200 + 1 * 100
    assert cost.gpu_watts.value == pytest.approx(a_gpu / 10)
    assert cost.node_watts.value == pytest.approx(8 * a_gpu / 10 + 2160)
    joules = (8 * a_gpu + 10 * 2200) * 1.25
    assert cost.energy.value == pytest.approx(joules)
    assert cost.watts.value == pytest.approx(joules / 10)
    assert cost.kwh_per_million == pytest.approx(joules / 3.6e6 * 20)
    assert cost.usd is not None
    assert cost.usd.value == pytest.approx(24 / 360)
    assert cost.usd_per_million == pytest.approx(24 / 360 * 20)
    assert cost.joules["idle"].value == pytest.approx(8 * 1000)
    assert cost.joules["matrix"].value == pytest.approx(8 * 4 * 600)


def test_gpus_that_are_not_used_are_idle() -> None:
    busy = [Busy(6, 4.0, 2.0, 3.0)]
    cost = cost_from(a_cluster(), rent(24.0), busy, 10.0, 1, nodes=1)
    a_gpu = 4 * 700 + 2 * 400 + 3 * 200 + 1 * 100
    assert cost.energy.value == pytest.approx((6 * a_gpu + 2 * 1000 + 22000) * 1.25)
    assert cost.gpu_watts.value == pytest.approx(a_gpu / 10)


def test_electricity_of_what_is_owned() -> None:
    owned = Prices(known(10.0), known(0.2), known(1e6), True, "", "", ())
    cost = cost_from(a_cluster(), owned, [Busy(8, 0.0, 0.0, 0.0)], 3600.0, 1, nodes=1)
    kwh = (8 * 100 + 2200) * 1.25 / 1000
    assert cost.usd is not None
    assert cost.usd.value == pytest.approx(10 + 0.2 * kwh)
    assert cost.usd_per_hour == pytest.approx(10 + 0.2 * kwh)


def test_errors_of_gpus_of_a_kind_add_up() -> None:
    watts = {name: Uncertain(value, 0.1 * value) for name, value in WATTS.items()}
    power = ClusterPower(
        (GpuPower(700.0, watts),), (8,), known(0.0), known(0.0), known(0.0), known(1.0), ()
    )
    cost = cost_from(power, rent(1.0), [Busy(8, 6.0, 4.0, 0.0)], 10.0, 1, nodes=1, error=0.05)
    off = hypot(6 * 70, 4 * 40) * 8
    assert cost.watts.error == pytest.approx(off / 10)
    assert cost.energy.error == pytest.approx(hypot(off, 0.05 * 8 * (6 * 700 + 4 * 400)))


def test_the_error_of_a_building_is_that_of_a_product() -> None:
    watts = {name: Uncertain(value, 0.1 * value) for name, value in WATTS.items()}
    pue = Uncertain(1.5, 0.15)
    power = ClusterPower((GpuPower(700.0, watts),), (1,), known(0), known(0), known(0), pue, ())
    cost = cost_from(power, rent(1.0), [Busy(1, 10.0, 0.0, 0.0)], 10.0, 1, nodes=1)
    assert cost.watts.value == pytest.approx(1.5 * 700)
    assert cost.watts.relative == pytest.approx(hypot(0.1, 0.1))


@given(
    st.lists(st.floats(0, 10), min_size=3, max_size=3),
    st.floats(0, 10),
    st.integers(0, 16),
)
def test_power_lies_between_idle_and_busy(times: list[float], idle: float, unused: int) -> None:
    seconds = sum(times) + idle + 1e-3
    power = a_cluster(16 + unused)
    cost = cost_from(power, rent(1.0), [Busy(16, *times)], seconds, 1, nodes=2)
    assert power.least <= cost.watts.value * (1 + 1e-9)
    most = (16 * 700 + unused * 100 + 2200) * 1.25
    assert cost.watts.value <= most * (1 + 1e-9)
    assert cost.most_watts == pytest.approx((16 * 700 + unused * 700 + 2200) * 1.25)
    assert cost.energy.value == pytest.approx(sum(each.value for each in cost.joules.values()))


# --- data -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", gpu_names())
def test_every_gpu_draws_more_when_it_works(name: str) -> None:
    power = gpu_power(find_gpu(name))
    watts = [power.watts[state].value for state in STATES]
    assert 0 < watts[0] < watts[3] < watts[2] < watts[1] <= power.board


def test_a_gpu_without_a_power_is_refused() -> None:
    from dataclasses import replace

    with pytest.raises(InputError, match="nothing says what"):
        gpu_power(replace(find_gpu("h100-sxm"), power=None))


def test_names_in_the_data_are_gpus() -> None:
    tables = packaged("prices.toml")
    named = [*packaged("power.toml")["host"]]
    named += [name for table in ("on-demand", "reserved", "purchase") for name in tables[table]]
    assert [name for name in named if gpu_name(name) != name] == []


def test_every_price_has_a_date_and_a_source() -> None:
    for table, rows in packaged("prices.toml").items():
        for name in rows:
            found = price(table, name)
            assert found is not None
            assert len(found.date) == len("2026-05")
            assert found.source


def test_a_node_of_h100_draws_what_was_measured_with_all_gpus_busy() -> None:
    """8.48 kW with GPUs at 700 W (arXiv:2412.08602): what the hosts' number was taken from."""
    power = cluster_power(find_cluster("dgx-h100"), 1, {"h100-sxm": find_gpu("h100-sxm")})
    assert power.most == pytest.approx(8480 * power.pue.value, rel=0.01)
    assert 8 * 700 + power.hosts.value + power.nics.value == pytest.approx(8480, rel=0.01)


@pytest.mark.parametrize("name", gpu_names())
def test_hosts_draw_no_more_when_nothing_runs(name: str) -> None:
    gpu = find_gpu(name)
    assert gpu.power is not None
    busy, idle = host_power(name, gpu.power.si)
    assert 0 < idle.value <= busy.value
    assert idle.error > 0


def test_power_of_a_cluster_that_waits_by_hand() -> None:
    watts = {name: known(value) for name, value in WATTS.items()}
    parts = (known(2000.0), known(160.0), known(40.0), Uncertain(1.25, 0.125))
    power = ClusterPower((GpuPower(700.0, watts),), (8,), *parts, (), known(800.0))
    assert power.nodes_idle == known(8 * 100 + 800 + 200)
    assert power.idle.value == pytest.approx(1800 * 1.25)
    assert power.idle.relative == pytest.approx(0.1)  # of the building alone
    assert power.while_gpus("communication").value == pytest.approx((8 * 200 + 2200) * 1.25)
    assert power.while_gpus("idle").value == pytest.approx(power.least)
    assert a_cluster().idle.value == pytest.approx(a_cluster().least)  # no idle hosts are given


# --- prices ---------------------------------------------------------------------------------------


def test_prices_of_the_user_come_first() -> None:
    cluster = find_cluster("dgx-h100")
    assert _hour(PriceChoice(gpu_hour=2.0), cluster, 4) == 64
    assert _hour(PriceChoice(gpu_hour=2.0, gpu_hours={"H100": 3.0}), cluster, 4) == 96
    assert _hour(PriceChoice(gpu_hour=2.0, gpu_hours={"a100-sxm": 3.0}), cluster, 4) == 64
    found = price("reserved", "h100-sxm")
    assert found is not None
    assert _hour(PriceChoice(contract="reserved"), cluster, 1) == pytest.approx(8 * found.value)


def _hour(choice: PriceChoice, cluster: Cluster, nodes: int) -> float:
    found = read_prices(choice, cluster, nodes, [cluster.gpu])
    assert found.hour is not None
    return found.hour.value


def test_nodes_of_other_gpus_have_their_own_prices_and_powers() -> None:
    text = (
        '[model]\npreset = "gpt2-124m"\n[plan]\nglobal_batch = 32\n[cluster]\npreset = "dgx-h100"\n'
        'nodes = 4\nother_gpus = { "1-3" = "a100-sxm" }\n[prices]\ngpu_hour = 4\n'
        "gpu_hours = { a100-sxm = 1 }\n"
    )
    power, prices = cost_of_cluster(read(text, "x.toml"))
    assert power.counts == (8, 24)
    assert prices.hour == known(8 * 4 + 24 * 1)
    board = [gpu.board for gpu in power.gpus]
    assert board == [700, 400]
    idle = packaged("power.toml")["gpu"]["idle"]["value"] * (8 * 700 + 24 * 400)
    assert power.least == pytest.approx((idle + power.beside.value) * power.pue.value)
    assert power.hosts.value == pytest.approx(8 * 335 + 24 * 235)


def test_what_is_bought_by_hand() -> None:
    cluster = find_cluster("dgx-h100")  # 8 NICs of 400 Gb/s, leaves of 32
    choice = PriceChoice(contract="owned", node=300_000, years=5, kwh=0.1)
    found = read_prices(choice, cluster, 16, ["h100-sxm"])
    port, link = (packaged("prices.toml")["network"][each]["value"] for each in ("port", "link"))
    # 128 NICs on four leaves: a port below, and one up with one above; two links.
    network = 128 * 400 * (3 * port + 2 * link)
    assert found.purchase is not None
    assert found.purchase.value == pytest.approx(16 * 300_000 + network)
    assert found.hour is not None
    assert found.hour.value == pytest.approx(found.purchase.value / 5 / HOURS_OF_A_YEAR)


def test_rent_moves_with_the_network_by_hand() -> None:
    listed = find_cluster("dgx-h100")  # 8 NICs of 400 Gb/s, leaves of 32
    fewer = with_speeds(listed, {"nics": 4})
    table = packaged("prices.toml")
    hour = table["on-demand"]["h100-sxm"]["value"]
    port, link, nic = (table["network"][each]["value"] for each in ("port", "link", "nic"))
    # Half of 128 NICs; 64 on two leaves still need ports below and above, and two links.
    less = 64 * 400 * (3 * port + 2 * link + nic) / 4 / HOURS_OF_A_YEAR
    choice = PriceChoice(years=4)
    usual = read_prices(choice, listed, 16, ["h100-sxm"], listed=listed)
    found = read_prices(choice, fewer, 16, ["h100-sxm"], listed=listed)
    assert usual.hour is not None
    assert found.hour is not None
    assert usual.hour.value == pytest.approx(128 * hour)
    assert found.hour.value == pytest.approx(128 * hour - less)
    assert found.hour.error < usual.hour.error * 1.01
    assert any("less than that of the cluster's file" in line for line in found.assumptions)
    own = read_prices(PriceChoice(gpu_hour=2.0), fewer, 16, ["h100-sxm"], listed=listed)
    assert own.hour == known(256)  # what the user pays is what it costs


def test_ports_of_switches() -> None:
    cluster = find_cluster("dgx-h100")
    assert switch_ports(cluster, 1) == 0
    assert switch_ports(cluster, 2) == 1  # 16 NICs on one leaf
    assert switch_ports(cluster, 16) == 3
    assert switch_ports(cluster, 2048) == 5


def test_a_price_that_is_not_known_is_said() -> None:
    text = '[model]\npreset = "gpt2-124m"\n[plan]\nglobal_batch = 8\n[cluster]\npreset = "alps"\n'
    _, prices = cost_of_cluster(read(text, "x.toml"))
    assert prices.hour is None
    assert "prices.gpu_hour" in prices.missing


def test_prices_of_gpus_that_there_are_not() -> None:
    with pytest.raises(InputError, match="h100-sxm"):
        PriceChoice(gpu_hours={"h100-smx": 1.0})


def test_results_say_what_the_step_costs() -> None:
    _, experiment = load("llama3-8b-8-h100", ["prices.gpu_hour=1", "prices.pue=1"])
    results = mpisim.simulate(experiment)
    assert results is not None
    said = results.attributes
    assert said["usd_hour"] == pytest.approx(8)
    assert said["usd_step"] == pytest.approx(8 * results.step_time / 3600)
    assert said["power"] == pytest.approx(said["energy"] / results.step_time)
    assert said["power_gpu"] * 8 < said["power_node"] == pytest.approx(said["power"])
    assert said["usd_per_million"] == pytest.approx(said["usd_step"] / said["tokens"] * 1e6)


def test_a_price_that_nobody_knows_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "--set", "cluster.preset=dgx-h800", "--set", "model.layers=1"]
    assert main(run) == 0
    assert "with the building, price unknown; " in capsys.readouterr().out
    assert main([*run, "--set", "prices.gpu_hour=1"]) == 0
    assert "with the building, $8.00 an hour; " in capsys.readouterr().out


def test_energy_follows_from_the_accounts() -> None:
    """From the accounts of all ranks: when products run, when others do, when communications."""
    _, experiment = load("qwen3-30b-a3b-16-h100", ["prices.pue=1"])
    results = mpisim.simulate(experiment)
    assert results is not None
    ranks, step = results.ranks, results.step_time
    names = results.kernels["name"].tolist()
    totals = results.kernels["total"].astype(float)
    linear = "experts in|experts out|qkv|attention output|logits|router"
    product = re.compile(rf"attention( backward)?|({linear})( (weight|input) gradient)?")
    products = np.array([product.fullmatch(name) is not None for name in names])
    share = totals[products].sum() / totals.sum()
    compute = ranks["compute"].sum() * 1e-12
    exposed = ranks["exposed"].sum() * 1e-12
    watts = {state: gpu_power(find_gpu("h100-sxm")).watts[state].value for state in STATES}
    joules = (
        share * compute * watts["matrix"]
        + (1 - share) * compute * watts["memory"]
        + exposed * watts["communication"]
        + (16 * step - compute - exposed) * watts["idle"]
    )
    assert results.attributes["power_gpu"] * 16 * step == pytest.approx(joules, rel=1e-3)


# --- measured power -------------------------------------------------------------------------------


def test_measured_power_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.json"
    assert main(["validate", "power", "--json", str(file)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    rows = {row["name"]: row for row in json.loads(file.read_text())}
    for name, row in rows.items():
        assert name in text
        assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    near = [name for name, row in rows.items() if abs(row["error"]) <= 0.15]
    assert len(near) >= 3, near
    # All within two of their own error bars, idle nodes within one. Those of BLOOM are independent
    # of all that is in power.toml.
    for row in rows.values():
        bars = 1 if row["of"] == "idle" else 2
        assert abs(row["error"]) <= bars * row["predicted_error"], row
    assert {name for name, row in rows.items() if row["of"] == "idle"} >= {"bloom-idle"}
