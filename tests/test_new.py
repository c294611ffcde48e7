"""``mpisim new``: what it writes is an experiment that lacks no key."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpisim.base.errors import InputError
from mpisim.base.schema import build
from mpisim.cli import main
from mpisim.cli.example import _documented, _section, example
from mpisim.experiment import (
    Cnn,
    Dlrm,
    FrameworkOptions,
    OffloadOptions,
    OverlapOptions,
    PipelineOptions,
    Plan,
    PrecisionOptions,
    RecomputeOptions,
    TableOptions,
    Transformer,
    read,
)
from mpisim.experiment.choices import (
    CalibrationChoice,
    ClusterChoice,
    KernelChoice,
    NetworkChoice,
    OverlapChoice,
    PriceChoice,
    RunChoice,
    VariationChoice,
)
from mpisim.experiment.model_counts import parameters
from mpisim.experiment.model_presets import find_model, model_presets
from mpisim.experiment.models import FAMILIES
from mpisim.experiment.plan import GROUPS, with_keys
from mpisim.kernels import find_gpu
from mpisim.memory import assess, capacity
from mpisim.prediction.hardware import hardware_of
from mpisim.prediction.prepared import prepare
from mpisim.prediction.uncertainty import unshared_share
from mpisim.search.bound import StepBounds
from mpisim.search.starting_candidates import _spread
from mpisim.topo import find_cluster
from mpisim.workloads import lay_out
from mpisim.workloads.grid import Grid

Run = Callable[..., Any]

GIB = 2**30

SECTIONS = {
    "plan": Plan,
    "plan.pipeline": PipelineOptions,
    "plan.recompute": RecomputeOptions,
    "plan.precision": PrecisionOptions,
    "plan.overlap": OverlapOptions,
    "plan.offload": OffloadOptions,
    "plan.tables": TableOptions,
    "framework": FrameworkOptions,
    "cluster": ClusterChoice,
    "kernels": KernelChoice,
    "network": NetworkChoice,
    "overlap": OverlapChoice,
    "variation": VariationChoice,
    "calibration": CalibrationChoice,
    "prices": PriceChoice,
    "run": RunChoice,
}


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^\[([\w.]+)\]\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_key_stands_in_the_example_with_its_default() -> None:
    text = sections(example("llama-3-8b", "dgx-h100", every=True).text)
    for name, cls in {"model": Transformer, **SECTIONS}.items():
        for field in dataclasses.fields(cls):
            if name == "plan" and field.name in GROUPS:  # a table of its own
                continue
            pattern = rf"^(# )?{field.name} (= .+|is not set)$"
            assert re.search(pattern, text[name], re.MULTILINE), f"[{name}] lacks {field.name}"


@pytest.mark.parametrize("cls", [Transformer, Cnn, Dlrm, *SECTIONS.values()])
def test_every_key_is_documented(cls: type) -> None:
    documented = [name for names, _ in _documented(cls) for name in names]
    assert sorted(documented) == sorted(field.name for field in dataclasses.fields(cls))


def test_a_key_that_nothing_explains_is_written_all_the_same() -> None:
    @dataclasses.dataclass
    class Keys:
        """A table.

        Attributes
        ----------
        first : int
            That is explained.
        """

        first: int = 1
        second: int = 2

    assert _section(Keys, {}) == "# That is explained.\n# first = 1\n\n# second = 2\n"


def test_keys_that_are_uncommented_change_nothing() -> None:
    text = example("deepseek-v3", "dgx-h800", 256, every=True).text
    whole = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    tables = tomllib.loads(whole)
    assert len(tables["plan"]) > 15
    assert len(tables["framework"]) > 25
    assert dataclasses.replace(read(whole, "whole"), source="") == dataclasses.replace(
        read(text, "text"), source=""
    )


@pytest.mark.parametrize("name", model_presets())
def test_every_model_gives_an_experiment(name: str) -> None:
    experiment = read(example(name, "dgx-h100", 64).text, name)
    table = find_model(name)
    cls, common = FAMILIES[table["family"]]
    assert experiment.model == build(cls, {**common, **table}, "preset", name)
    plan = experiment.plan
    grid = Grid.of(plan, 64)
    assert (grid.world, plan.dp) == (64, None)
    assert plan.global_batch % (grid.dp * plan.micro_batch) == 0
    assert experiment.cluster.nodes == 8


@pytest.mark.parametrize(
    ("name", "cluster", "gpus"),
    [
        ("llama-3-8b", "dgx-h100", 8),
        ("gpt3-175b", "dgx-a100", 96),
        ("gpt2", "gv100-4gpu", 4),
        ("llama-3-405b", "dgx-h100", 1024),
        ("qwen3-30b-a3b", "dgx-h100", 16),
        ("deepseek-v3", "dgx-h800", 2048),
    ],
)
def test_weights_and_states_leave_room_for_activations(name: str, cluster: str, gpus: int) -> None:
    experiment = read(example(name, cluster, gpus).text, name)
    hardware = hardware_of(experiment)
    gpu = find_gpu(find_cluster(cluster).gpu)
    found = assess(lay_out(experiment, gpus), gpu, node=hardware.cluster.gpus_per_node)
    assert found.fits
    assert found.certain
    assert all(each.activations > 0 for each in found.stages)
    assert experiment.plan.tp <= find_cluster(cluster).gpus_per_node


@pytest.mark.parametrize(
    ("name", "cluster", "gpus"),
    [
        ("llama-3-8b", "dgx-h100", 8),
        ("llama-3-70b", "dgx-h100", 64),
        ("gpt2", "gv100-4gpu", 4),
        ("qwen3-30b-a3b", "dgx-h100", 16),
        ("bert-large", "dgx-v100", 8),
        ("t5-base", "dgx-a100", 8),
        ("vit-b-16", "a40-4gpu", 4),
        ("resnet-50", "dgx-v100", 8),
        ("dlrm-default", "dgx-a100", 8),
    ],
)
def test_examples_are_generated_and_fit(name: str, cluster: str, gpus: int) -> None:
    case = prepare(read(example(name, cluster, gpus).text, name))
    assert case.program.n_ranks == gpus


GRID = list(
    product(
        ("llama-3-8b", "llama-3-70b", "llama-3-405b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3"),
        ("dgx-a100", "dgx-h100", "gb200-nvl72"),
        (8, 64, 512, 2048),
    )
)


@pytest.mark.parametrize(("name", "cluster", "gpus"), [*GRID, ("llama-3-405b", "dgx-h100", 16384)])
def test_plans_fit_or_it_is_said_that_none_does(name: str, cluster: str, gpus: int) -> None:
    found = example(name, cluster, gpus)
    experiment = read(found.text, name)
    hardware = hardware_of(experiment)
    gpu = next(iter(hardware.named.values()))
    verdict = assess(lay_out(experiment, gpus), gpu, node=hardware.cluster.gpus_per_node)
    plan = experiment.plan
    assert plan.tp <= hardware.cluster.gpus_per_node
    if verdict.fits:
        assert verdict.certain
        assert f"GiB ± {verdict.worst.error / GIB:.1f} of" in found.notes[0]
        assert f"the fullest GPU needs {verdict.peak / GIB:.1f} GiB" in found.notes[0]
        return
    assert "no plan that was tried fits" in found.notes[0]
    assert re.search(r"[\d,]+ GPUs have room, with (tp|pp) = \d", found.notes[1])
    assert f"#   {found.notes[0].removeprefix('plan: ')[:60]}" in found.text
    # 16 bytes of each parameter, shared by all GPUs, nearly fill them.
    assert isinstance(experiment.model, Transformer)
    assert 16 * parameters(experiment.model) / gpus > 0.75 * capacity(gpu)


@pytest.mark.parametrize(
    ("name", "gpus", "words"),
    [
        ("llama-3-70b", 24, "tp = 8, pp = 3"),  # three nodes
        ("llama-3-405b", 100_000, "pp = 10"),  # 2⁵ × 5⁵
        ("llama-3-70b", 14, "dp_style = fsdp"),  # two nodes of which seven GPUs are used
    ],
)
def test_unusual_numbers_of_gpus_have_plans_that_fit(name: str, gpus: int, words: str) -> None:
    found = example(name, "dgx-h200" if gpus == 14 else "dgx-h100", gpus)
    assert words in found.notes[0]
    assert "the fullest GPU needs" in found.notes[0]
    assert f"on {gpus:,} GPUs" in found.text


@pytest.mark.parametrize(("name", "gpus"), [("llama-3-8b", 8), ("gpt3-175b", 512)])
@pytest.mark.parametrize("change", ["plan.tp=8", "plan.tp=4", "plan.recompute=full"])
def test_sizes_can_be_changed(name: str, gpus: int, change: str) -> None:
    experiment = read(example(name, "dgx-h100", gpus).text, name, [change, "run.allow_oom=true"])
    layout = lay_out(experiment, gpus)
    assert layout.grid.world == gpus


@given(layers=st.integers(4, 200), pp=st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_layers_are_spread_evenly(layers: int, pp: int) -> None:
    sizes = _spread(layers, pp).get("pipeline.stages")
    if sizes is None:
        assert layers % pp == 0 or (layers + 2) % pp == 0
        return
    assert (sum(sizes), len(sizes)) == (layers, pp)
    with_ends = [sizes[0] + 1, *sizes[1:-1], sizes[-1] + 1]
    assert max(with_ends) - min(with_ends) <= 1


CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}


def checkpoint(folder: Path, **keys: object) -> Path:
    """A folder with a config.json."""
    folder.mkdir()
    found = {key: value for key, value in {**CONFIG, **keys}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(found))
    return folder / "config.json"


def test_a_config_has_sequences_as_models_are_trained_on(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "Llama-3.1-8B")
    found = example(str(path), "dgx-h100", 8, config=True, folder=tmp_path / "runs")
    assert 'hf_config = "../Llama-3.1-8B/config.json"' not in found.text  # an absolute path is kept
    experiment = read(found.text, str(tmp_path / "runs" / "mine.toml"))
    assert isinstance(experiment.model, Transformer)
    assert (experiment.model.seq_len, experiment.model.layers) == (8192, 32)
    assert experiment.title == "Llama-3.1-8B on 8 GPUs"
    assert found.notes[0] == (
        f"seq_len = 8192, a usual length in training: {path} allows 131,072 tokens "
        "(max_position_embeddings)"
    )
    assert "#   seq_len = 8192, a usual length in training" in found.text
    short = checkpoint(tmp_path / "short", max_position_embeddings=2048)
    kept = example(str(short), "dgx-h100", 8, config=True)
    assert read(kept.text, "kept").model.seq_len == 2048  # type: ignore[union-attr]
    assert len(kept.notes) == 1 or "seq_len" not in kept.notes[0]


@pytest.mark.parametrize("option", ["--config", "--model"])
def test_new_takes_a_config(call_mpisim: Run, tmp_path: Path, option: str) -> None:
    config = checkpoint(tmp_path / "model")
    args = ["new", str(tmp_path / "mine.toml"), option, str(config), "--gpus", "16"]
    done = call_mpisim(args)
    assert done.rc == 0
    assert "(max_position_embeddings)" in done.stderr
    text = (tmp_path / "mine.toml").read_text()
    assert prepare(read(text, str(tmp_path / "mine.toml"))).memory.fits
    config.write_text('{"model_type": "lama"}')
    again = call_mpisim([*args, "--overwrite"])
    assert again.rc == 2
    assert "key 'model_type' is 'lama' (did you mean 'llama'?)" in again.errors[0]


def test_a_relative_config_is_found_from_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path / "model")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    found = example("model", "dgx-h100", 8, config=True, folder="runs")
    assert 'hf_config = "../model"' in found.text
    assert read(found.text, "runs/mine.toml").model.layers == 32  # type: ignore[union-attr]


def test_sequences_of_a_config_that_are_too_long(call_mpisim: Run, tmp_path: Path) -> None:
    """Where the length comes from is said, and a shorter one that fits."""
    checkpoint(tmp_path / "model")
    text = '[model]\nhf_config = "model"\n[plan]\nglobal_batch = 8\ntp = 2\nzero = 1\n'
    (tmp_path / "mine.toml").write_text(text + '[cluster]\npreset = "dgx-h100"\n')
    done = call_mpisim(["run", str(tmp_path / "mine.toml")])
    assert done.rc == 2
    (line,) = done.errors
    assert "model.seq_len = 131072 is the longest that model allows (max_position_emb" in line
    assert "With model.seq_len = 16384 it fits (" in line
    given = call_mpisim(["run", str(tmp_path / "mine.toml"), "--set", "model.seq_len=131072"])
    assert "max_position_embeddings" not in given.errors[0]


@pytest.mark.parametrize(
    ("gpus", "framework"), [(128, None), (128, {"name": "megatron-core"}), (64, None)]
)
def test_experts_stay_in_a_node_where_that_is_faster(
    gpus: int, framework: dict[str, str] | None
) -> None:
    """Groups of experts over nodes send most tokens through NICs; the plan must be a valid one."""
    text = example("qwen3-235b-a22b", "dgx-h200", gpus, framework=framework).text
    case = prepare(read(text, "e"))
    plan = case.experiment.plan
    assert case.memory.fits
    assert plan.ep * plan.etp <= 8 * plan.tp
    assert plan.pp > 1


@pytest.mark.parametrize(
    ("gpus", "nodes", "share", "used"),
    [(256, 4, 64, None), (1024, 16, 64, None), (144, 2, None, None), (100, 2, None, 100)],
)
def test_racks_are_used_alike(gpus: int, nodes: int, share: int | None, used: int | None) -> None:
    found = example("qwen3-30b-a3b", "gb200-nvl72", gpus)
    experiment = read(found.text, "e")
    cluster = experiment.cluster
    assert (cluster.nodes, cluster.gpus_per_node, cluster.gpus) == (nodes, share, used)
    hardware = hardware_of(experiment)
    assert hardware.gpus == gpus
    node = hardware.cluster.node
    assert node is not None
    assert node.nics == (share or 72)  # one of each GPU: they are in its tray
    assert (share is None) == ("cluster: " not in "".join(found.notes))


def test_part_of_a_node() -> None:
    experiment = read(example("gpt2", "dgx-h100", 12).text, "e")
    assert (experiment.cluster.nodes, experiment.cluster.gpus) == (2, 12)


def test_more_than_a_box_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        example("gpt2", "a40-4gpu", 8)
    assert str(caught.value) == "8 GPUs are more than the 4 of 'a40-4gpu', which is one box"


def test_it_is_printed_or_written_and_never_over_a_file(run_mpisim: Run, tmp_path: Path) -> None:
    printed = run_mpisim(["new", "--model", "gpt3-13b", "--gpus", "16"])
    assert printed.rc == 0
    assert printed.stderr.startswith("mpisim: plan: tp = 2, zero = 1: the fullest GPU needs ")
    assert read(printed.stdout, "printed").cluster.nodes == 2
    path = tmp_path / "mine.toml"
    args = ["new", str(path), "--model", "gpt3-13b", "--gpus", "16"]
    assert run_mpisim(args).rc == 0
    assert path.read_text() == printed.stdout
    again = run_mpisim(args)
    assert again.rc == 2
    assert again.errors == [
        f"mpisim: error: {path}: exists already; name another file, or --overwrite it"
    ]
    assert run_mpisim([*args, "--overwrite"], 2).rc == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--model", "lama-3-8b"], "unknown model 'lama-3-8b' (did you mean 'llama-3-8b'?)"),
        (["--cluster", "dgx-h10"], "unknown cluster 'dgx-h10' (did you mean 'dgx-h100'?)"),
        (["--framework", "nmo"], "unknown framework 'nmo' (did you mean 'nemo'?)"),
        (
            ["--framework", "nemo", "--framework-version", "new"],
            "framework.version is 'new'; it must begin with numbers",
        ),
        (["--gpus", "0"], "--gpus is 0; it must be from 1 to 10000000"),
        (["--gpus", "99999999999"], "--gpus is 99999999999; it must be from 1 to 10000000"),
        (["--overwrite"], "--overwrite needs a file to write"),
        (["--config", "none.json"], "none.json: cannot be read: No such file"),
        (["--model", "no/such"], "no/such: cannot be read: No such file"),
        (["--model", "qwen3-235b"], "(did you mean 'qwen3-235b-a22b'?)"),
        (["--config", "c", "--model", "m"], "argument --model: not allowed with argument --config"),
    ],
)
def test_bad_arguments_are_one_line(call_mpisim: Run, args: list[str], message: str) -> None:
    done = call_mpisim(["new", *args])
    assert done.rc == 2
    assert len(done.errors) == 1
    assert message in done.errors[0]


def test_chunks_and_micro_batches_are_taken_where_they_are_faster() -> None:
    """A bubble of a quarter of the step is halved by model chunks."""
    experiment = read(example("gpt3-175b", "dgx-h100", 512).text, "x")
    plan = experiment.plan
    assert plan.pp > 1
    assert plan.vpp > 1
    plain = with_keys(plan, {"vpp": 1, "pipeline.schedule": "1f1b"})
    bounds, hardware = StepBounds(), hardware_of(experiment)
    before = bounds.closer(replace(experiment, plan=plain), hardware)
    assert bounds.closer(experiment, hardware) * (1 + unshared_share()) < before


@pytest.mark.parametrize(
    ("name", "packed"),
    [("vit-b-16", 16), ("vit-h-14", 8), ("bert-large", 8), ("gpt2", 1), ("llama-3-8b", 1)],
)
def test_short_sequences_count_by_their_tokens(name: str, packed: int) -> None:
    # 197, 257, 512, 1,024 and 8,192 tokens: of those below 1,024 as many as go into 4,096 count as
    # one, a power of two.
    plan = read(example(name, "dgx-h100", 8).text, name).plan
    assert plan.pp == 1
    assert plan.global_batch == 8 * packed * (8 // plan.tp)
    assert plan.micro_batch <= 4 * packed
    assert plan.micro_batch.bit_count() == 1
    if packed > 1:
        assert plan.micro_batch > 4


def test_adapters_need_less_memory() -> None:
    """70B with adapters fit into 8 GPUs, in which the whole training has no room."""
    with_adapters = example("llama-3-70b", "dgx-h100", 8, changes={"lora_rank": 16})
    assert "lora_rank = 16" in with_adapters.text
    assert "the fullest GPU needs" in with_adapters.notes[0]
    assert "no plan that was tried fits" in example("llama-3-70b", "dgx-h100", 8).notes[0]


def test_a_model_of_ones_own() -> None:
    sizes = {"family": "gpt", "layers": 12, "hidden": 768, "heads": 12, "seq_len": 1024}
    found = read(example("llama-3-8b", "dgx-h100", 8, changes=sizes | {"vocab": 50304}).text, "x")
    assert isinstance(found.model, Transformer)
    assert (found.model.layers, found.model.hidden, found.model.heads) == (12, 768, 12)
    longer = read(example("llama-3-8b", "dgx-h100", 8, changes={"seq_len": 16384}).text, "x")
    assert isinstance(longer.model, Transformer)
    assert longer.model.seq_len == 16384


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("plan.tp=2", "'mpisim run FILE --set plan.tp=2' changes others"),
        ("plan.dp_style=fsdp", "'mpisim run FILE --set framework.dp_style=fsdp' changes others"),
        ("model.seqlen=2", "did you mean 'seq_len'?"),
        ("model.seq_len=8K", "write 8000, or 8192"),
        ("seq_len=4", "mpisim new takes keys of [model]"),
    ],
)
def test_changes_that_are_none(change: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "--set", change]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
