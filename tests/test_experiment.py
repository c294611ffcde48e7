"""Experiments: reading, presets, changes, defaults; and what is refused, in one line each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mpisim.base.errors import InputError, MpisimError, UsageError
from mpisim.experiment import Cnn, Dlrm, Transformer, defaulted, load, read
from mpisim.prediction.prepared import prepare

SMALL = """
title = "small"

[model]
family = "gpt"
layers = 4
hidden = 64
heads = 4
vocab = 1000
seq_len = 32

[plan]
tp = 2
dp = 2
micro_batch = 3
global_batch = 12

[cluster]
preset = "dgx-h100"
"""

SEQUENCES = SMALL.replace('"gpt"', '"t5"\ndecoder_layers = 2')

MIXTURE = SMALL.replace('"gpt"', '"moe"\nexperts = 4').replace("tp = 2", "tp = 2\nep = 2")

VISION = """
[model]
family = "resnet"
depth = 18
[plan]
global_batch = 64
micro_batch = 8
precision = "fp16"

[framework]
dp_style = "ddp"
[cluster]
preset = "dgx-h100"
"""

CLICKS = """
[model]
family = "dlrm"
table_entries = [1000, 2000]
embedding = 16
bottom_mlp = [32, 16]
top_mlp = [32, 1]
[plan]
global_batch = 64
micro_batch = 32
dp = 2
precision = "fp32"
optimizer = "sgd"

[framework]
dp_style = "ddp"
[cluster]
preset = "dgx-h100"
"""


def test_the_default_experiment_is_llama_on_one_node() -> None:
    text, experiment = load()
    assert isinstance(experiment.model, Transformer)
    assert (experiment.model.layers, experiment.model.hidden) == (32, 4096)
    assert prepare(experiment).program.n_ranks == 8
    assert read(text, experiment.source) == experiment


def test_a_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(SMALL)
    text, experiment = load(path)
    assert text == SMALL
    assert experiment.source == str(path)
    assert experiment.cluster.nodes == 1
    assert experiment.plan.sequence_parallel
    assert not experiment.plan.overlaps_p2p
    assert experiment.model.ffn == 256  # type: ignore[union-attr]
    assert defaulted(text)["plan.pp"] == 1
    assert "plan.tp" not in defaulted(text)
    assert "plan.pp" not in defaulted(text, ["plan.pp=1"])
    filled = experiment.set_by_profile  # by common practice: no framework is named
    left = {key: value for key, value in defaulted(text).items() if key not in filled}
    assert experiment.left_to_defaults() == left


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_schedules_in_a_v_have_two_chunks_where_none_are_given(schedule: str) -> None:
    changes = ["plan.pp=2", "plan.dp=4", "plan.zero=1", f"plan.pipeline={schedule}"]
    text, experiment = load("llama3-8b-8-h100", changes)
    _, given = load("llama3-8b-8-h100", [*changes, "plan.vpp=2"])
    assert experiment.plan == given.plan
    assert experiment.left_to_defaults()["plan.vpp"] == 2 == defaulted(text, changes)["plan.vpp"]
    assert "plan.vpp" not in given.left_to_defaults()
    _, other = load("llama3-8b-8-h100", changes[:-1])
    assert other.plan.vpp == 1


def test_what_was_set_or_changed_is_no_default() -> None:
    experiment = read(SMALL, "e", ["network.contention=false", "plan.pp=1"])
    left = experiment.left_to_defaults()
    assert "network.contention" not in left
    assert "plan.pp" not in left
    assert left["network.model"] == "nccl"
    other = replace(experiment, network=replace(experiment.network, model="alpha-beta"))
    assert "network.model" not in other.left_to_defaults()
    assert other.left_to_defaults().keys() == left.keys() - {"network.model"}


def test_variables_of_nccl_may_be_numbers_on_the_command_line() -> None:
    experiment = read(SMALL, "e", ["network.nccl.NCCL_NVLS_ENABLE=0"])
    assert experiment.network.nccl == {"NCCL_NVLS_ENABLE": "0"}


def test_the_minimal_experiment() -> None:
    experiment = read(
        """
        [model]
        preset = "gpt3-175b"
        seq_len = 2048
        [plan]
        tp = 8
        pp = 16
        dp = 64
        micro_batch = 1
        global_batch = 4096

        [plan.pipeline]
        schedule = "1f1b"
        [cluster]
        preset = "dgx-h100"
        nodes = 1024
        """,
        "minimal",
    )
    model = experiment.model
    assert isinstance(model, Transformer)
    assert (model.layers, model.hidden, model.heads, model.seq_len) == (96, 12288, 96, 2048)


def test_families_presets_and_the_users_keys() -> None:
    def model(text: str) -> object:
        rest = "[plan]\nglobal_batch = 1\n[cluster]\npreset = 'dgx-h100'"
        return read(f"[model]\n{text}\n{rest}", "e").model

    plain = model('preset = "llama-3-8b"')
    assert isinstance(plain, Transformer)
    assert (plain.norm, plain.activation, plain.kv, plain.bias) == ("rms", "swiglu", 8, False)
    changed = model('preset = "llama-3-8b"\nlayers = 2\nseq_len = 4096')
    assert isinstance(changed, Transformer)
    assert (changed.layers, changed.seq_len, changed.hidden) == (2, 4096, plain.hidden)
    assert isinstance(model('family = "vgg"\ndepth = 16'), Cnn)
    assert isinstance(read(CLICKS, "e").model, Dlrm)


def test_a_hugging_face_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, '
        '"n_positions": 1024}'
    )
    path = tmp_path / "e.toml"
    path.write_text(
        '[model]\nhf_config = "config.json"\n[plan]\nglobal_batch = 8\n[cluster]\n'
        'preset = "dgx-h100"'
    )
    model = load(path)[1].model  # relative to the file, wherever mpisim runs
    assert isinstance(model, Transformer)
    assert (model.layers, model.hidden, model.seq_len) == (12, 768, 1024)


def test_parts_of_a_key_may_be_in_quotes() -> None:
    change = 'network.changes."links.node0.nic3->*.bandwidth" = "50 %"'
    assert load(changes=[change])[1].network.changes == {"links.node0.nic3->*.bandwidth": "50 %"}
    change = "network.changes.'links.a=b'=cut"
    assert load(changes=[change])[1].network.changes == {"links.a=b": "cut"}


def test_changes_are_toml_or_words() -> None:
    changes = [
        "plan.tp=4",
        "plan.pipeline.schedule=gpipe",
        "plan.pipeline.stages=[4]",
        "cluster.nodes = 2",
    ]
    experiment = read(SMALL, "e", [*changes, "plan.sp=false", 'title="other"'])
    plan = experiment.plan
    assert (plan.tp, plan.pipeline.schedule, plan.pipeline.stages, plan.sp) == (
        4,
        "gpipe",
        (4,),
        False,
    )
    assert (experiment.cluster.nodes, experiment.title) == (2, "other")
    assert read(SMALL, "e", ["run.allow_oom=true"]).run.allow_oom  # a table the file has not
    whole = read(SMALL, "e", ['plan.recompute={granularity = "full", layers = 1}'])
    assert (whole.plan.recompute.granularity, whole.plan.recompute.layers) == ("full", 1)
    for bad in ("plan.tp", "=3", "plan.=3", ".tp=3"):
        with pytest.raises(UsageError, match="not of the form"):
            read(SMALL, "e", [bad])
    with pytest.raises(InputError, match=r"; for one .* mpisim search --vary plan.tp=4,8$"):
        read(SMALL, "e", ["plan.dp=1", "plan.tp=4,8"])
    with pytest.raises(UsageError, match="'title' is no table"):
        read(SMALL, "e", ["title.x=3"])


BAD = [
    # the file
    (SMALL, "title", "title = ", "not valid TOML"),
    (SMALL, "[plan]", "[plan]\npt = 2", "unknown key 'pt' in [plan] (did you mean 'tp'?)"),
    (SMALL, "[plan]", "[plan]\ntensor_parallel_size = 2", "[plan] (did you mean 'tp'?)"),
    (SMALL, "[plan]", "[plan]\ntp_size = 2", "[plan] (did you mean 'tp'?)"),
    (SMALL, "[plan]", "[plan]\nmbs = 2", "[plan] (did you mean 'micro_batch'?)"),
    (SMALL, "[plan]", "[plan]\noffload_param = true", "(did you mean 'plan.offload.parameters'?)"),
    (SMALL, "[plan]", "[plan]\nfsdp = true", "[plan] (did you mean 'framework.dp_style'?)"),
    (SMALL, "[plan]", "[plans]", "unknown key 'plans' at the top level (did you mean 'plan'?)"),
    (SMALL, '[cluster]\npreset = "dgx-h100"', "", "key 'cluster' is missing"),
    (SMALL, SMALL, "# nothing", "holds no key; 'mpisim new' writes an experiment"),
    (SMALL, 'title = "small"', "tp = 3", "unknown key 'tp' at the top level (did you mean 'plan."),
    (SMALL, 'title = "small"', "preset = 3", "(did you mean 'cluster.preset' or 'model.preset'?)"),
    (SMALL, 'title = "small"', "title = 3", "key 'title' is 3; it must be a text"),
    (SMALL, 'title = "small"', "network = 3", "key 'network' is 3; it must be a table"),
    # [model]
    (SMALL, "hidden = 64", "hiden = 64", "unknown key 'hiden' in [model] (did you mean 'hidden'?)"),
    (SMALL, "layers = 4", "num_hidden_layers = 4", "in [model] (did you mean 'layers'?)"),
    (SMALL, "heads = 4", "heads = 4\nintermediate_size = 9", "(did you mean 'ffn_hidden'?)"),
    (SMALL, "hidden = 64", "", "key 'model.hidden' is missing"),
    (SMALL, "heads = 4", "heads = 5", "[model] hidden is 64, which is not a multiple of heads = 5"),
    (SMALL, "heads = 4", "heads = 4\nkv_heads = 3", "heads is 4, which is not a multiple of kv_"),
    (SMALL, "layers = 4", "layers = 0", "key 'model.layers' is 0; it must be an integer from 1"),
    (SMALL, "layers = 4", "layers = 30001", "key 'model.layers' is 30001; it must be an integer"),
    (SMALL, 'family = "gpt"\nlayers = 4', "", "[model] needs one of 'preset', 'hf_config', 'fam"),
    (SMALL, 'family = "gpt"', 'parameters = "many"', "parameters is 'many'; it must be a number"),
    (
        SMALL,
        'family = "gpt"',
        'preset = "gpt2"\nparameters = 7e9',
        "both 'preset' and 'parameters'",
    ),
    (SMALL, 'family = "gpt"', 'preset = "lama-3-8b"', "(did you mean 'llama-3-8b'?)"),
    (SMALL, 'family = "gpt"', 'family = "gptt"', "'gptt' (did you mean 'gpt'?); allowed: gpt, "),
    (SMALL, 'family = "gpt"', 'preset = "gpt3-175"', "(did you mean 'gpt3-175b'?)"),
    (SMALL, 'family = "gpt"', 'preset = "a"\nhf_config = "b"', "both 'preset' and 'hf_config'"),
    (SMALL, 'family = "gpt"', 'hf_config = "no.json"', "no.json: cannot be read: No such file"),
    (SMALL, "heads = 4\nvocab = 1000", "", "heads' is missing"),
    (SMALL, "vocab = 1000", 'vocab = 1000\nactivation = "sine"', "allowed: gelu, relu, swiglu"),
    (MIXTURE, "experts = 4", "experts = 0", "experts is 0: a mixture of experts needs 1 or more"),
    (MIXTURE, "experts = 4", "experts = 1", "topk is 2, more than experts = 1"),
    (SMALL, "layers = 4", 'layers = 4\nattention = "mla"', "kv_lora_rank is 0; attention = 'mla'"),
    (VISION, "depth = 18", "depth = 20", "depth is 20; a resnet has 18, 34, 50, 101, 152"),
    (VISION, "depth = 18", "depth = 18\nlayers = 3", "unknown key 'layers' in [model]"),
    (CLICKS, "bottom_mlp = [32, 16]", "bottom_mlp = [32]", "it must end with embedding = 16"),
    (CLICKS, "[1000, 2000]", "[1000, 0]", "key 'model.table_entries[1]' is 0; it must be an"),
    (SMALL, "layers = 4", "layers = 4\nmtp_layers = 101", "key 'model.mtp_layers' is 101; it must"),
    (SMALL, "layers = 4", "layers = 29999\ndecoder_layers = 2", "others have none"),
    (SEQUENCES, "layers = 4", "layers = 29999", "are 30001 together; there can be 30000"),
    (SEQUENCES, "layers = 4", "layers = 4\nmtp_layers = 1", "'t5' predicts no further tokens"),
    (SEQUENCES, "layers = 4", "layers = 4\nexperts = 4", "experts is 4; family 't5' has no"),
    (SMALL, "layers = 4", f"layers = {'[' * 9999}", "not valid TOML"),
    (SMALL, 'family = "gpt"', 'hf_config = "/dev/null"', "key 'model.hf_config': /dev/null: not"),
    (SMALL, 'family = "gpt"', 'hf_config = "a\\u0000b"', "cannot be read: embedded null"),
    (SMALL, 'family = "gpt"', f'hf_config = "{"a" * 999}"', "cannot be read: File name too long"),
    # [plan]
    (SMALL, "tp = 2", 'tp = "2"', "key 'plan.tp' is '2'; it must be an integer"),
    (SMALL, "tp = 2", "tp = 0", "key 'plan.tp' is 0; it must be an integer from 1 to"),
    (SMALL, "global_batch = 12", "", "key 'plan.global_batch' is missing"),
    (SMALL, "tp = 2", 'pipeline = "gpip"', "'gpip' (did you mean 'gpipe'?); allowed: gpipe, 1f1b"),
    (SMALL, "tp = 2", 'order = "tp-dp"', "order is 'tp-dp'; it must name each of"),
    (
        SMALL,
        "tp = 2",
        'order = "tp-cp-ep-dq-pp"',
        "unknown axis 'dq' (did you mean 'dp'?); allowed: tp, cp, ep, dp, pp",
    ),
    (SMALL, "tp = 2", "vpp = 2", "vpp is 2, but pipeline.schedule = '1f1b' has one chunk"),
    (SMALL, "tp = 2", "sp = true", "sp is true, but tp is 1"),
    (SMALL, "tp = 2", "overlap.tp = true", "overlap.tp is true; it needs tp > 1"),
    (SMALL, "tp = 2", "pp = 2\nzero = 3", "zero is 3 with pp > 1"),
    (SMALL, "[plan]", '[framework]\ndp_style = "megatron"\n[plan]\nzero = 3', "allows 0, 1"),
    (SMALL, "tp = 2", "fused = false", "has a new name: 'framework.fused'"),
    (SMALL, "tp = 2", "framework.fused = false", "it is a table by itself, [framework]"),
    (SMALL, "tp = 2", 'recompute = "some"', "key 'plan.recompute.granularity' is 'some'"),
    (SMALL, "[plan]", '[framework]\nversion = "1"\n[plan]', "version is given, but name is not"),
    (SMALL, "[plan]", '[framework]\nname = "nem"\n[plan]', "(did you mean 'nemo'?)"),
    (SMALL, "[plan]", "[framework]\nprecision = 1\n[plan]", "(did you mean 'plan.precision'?)"),
    (SMALL, "tp = 2", "gradients = 2", "(did you mean 'plan.precision.gradients'?)"),
    (SMALL, "hidden = 64", "recompute = 64", "in [model] (did you mean 'plan.recompute'?)"),
    (
        SMALL,
        "[plan]",
        "[framework]\nname = 'nemo'\nversion = '22.11'\n[plan]\nzero = 3",
        "allows 0, 1; framework.dp_style is what framework.name = 'nemo' sets",
    ),
    (SMALL, "[plan]", '[framework]\nname = "nemo"\nversion = "x"\n[plan]', "must begin with num"),
    (SMALL, "[plan]", "[calibration]\nframework = 1\n[plan]", "new name: 'framework.name'"),
    (SMALL, "tp = 2", "zero_group = 2", "zero_group is given, but zero is 0"),
    (
        SMALL,
        "tp = 2",
        "pp = 2\npipeline.stages = [4]",
        "stages has 1 entries; pp × vpp = 2 are needed",
    ),
    # model, plan and cluster together
    (SMALL, "tp = 2", "tp = 3", "model.heads is 4, which is not a multiple of plan.tp = 3"),
    (SMALL, "seq_len = 32", "seq_len = 33", "model.seq_len is 33"),
    (SMALL, "global_batch = 12", "global_batch = 13", "plan.global_batch is 13, which is not a"),
    (SMALL, "dp = 2", "dp = 8", "the plan needs 16 GPUs (dp = 8, tp × cp × pp = 2 × 1 × 1 = 2)"),
    (SMALL, "tp = 2\ndp = 2", "tp = 3", "tp × cp × pp = 3 × 1 × 1 = 3 does not divide the 8 GPUs"),
    (SMALL, "tp = 2", "pp = 3", "4 layers cannot be spread evenly over plan.pp × plan.vpp = 3"),
    (
        SMALL,
        "tp = 2",
        "pp = 3",
        "give the layers of each in plan.pipeline.stages, such as [2, 1, 1]",
    ),
    (SMALL, "tp = 2\ndp = 2", "tp = 16", "the plan needs 16 GPUs (dp = 1, tp"),
    (SMALL, "global_batch = 12", "global_batch = 240000", "40000 micro-batches of dp ×"),
    (SMALL, "tp = 2", "pp = 2\npipeline.stages = [1, 2]", "adds up to 3 layers; the model has 4"),
    (
        SMALL,
        "tp = 2",
        'pp = 2\nvpp = 2\npipeline = "interleaved"\nglobal_batch = 18',
        "interleaved",
    ),
    (SMALL, "tp = 2", 'pp = 4\npipeline = "dualpipe"', "dualpipe"),
    (
        SMALL,
        "tp = 2",
        'pp = 2\nvpp = 1\npipeline = "zb-v"',
        "vpp is 1, but pipeline.schedule = 'zb-v' has two chunks a stage: vpp = 2",
    ),
    (
        SMALL,
        "tp = 2",
        'pp = 2\nvpp = 2\npipeline = "zb-v"\noverlap.p2p = false',
        "overlap.p2p is false, but pipeline.schedule = 'zb-v': its stages would wait",
    ),
    (
        SMALL,
        "tp = 2",
        'pp = 2\npipeline = "zb-h2"\noverlap.p2p = false',
        "overlap.p2p is false, but pipeline.schedule = 'zb-h2': its stages would wait",
    ),
    (MIXTURE, "ep = 2", "ep = 3", "etp × ep is 1 × 3 = 3, which does not divide"),
    # [cluster], [kernels], [network], [run]
    (SMALL, "dgx-h100", "dgx-h10", "dgx-h10"),
    (SMALL, "dgx-h100", "a\\u0000b.toml", "cannot be read: embedded null byte"),
    (SMALL, '"dgx-h100"', '"dgx-h100"\nnodes = 0', "key 'cluster.nodes' is 0"),
    (SMALL, '"dgx-h100"', '"dgx-h100"\ngpus = 9', "'dgx-h100' have 8; give nodes = 2"),
    (SMALL, "[plan]", '[kernels]\ngpu = "h10-sxm"\n[plan]', "h10-sxm"),
    (SMALL, "[plan]", '[kernels]\nmodel = "rofline"\n[plan]', "(did you mean 'roofline'?); allow"),
    (SMALL, "[plan]", '[network]\nmodel = "ab"\n[plan]', "allowed: nccl, alpha-beta"),
    (SMALL, "[plan]", "[run]\nallow_oom = 1\n[plan]", "key 'run.allow_oom' is 1; it must be true"),
    (SMALL, "[plan]", '[kernels]\ngpu = "v100-sxm2-32gb"\n[plan]', "bf16"),
]


@pytest.mark.parametrize(("good", "old", "new", "message"), BAD, ids=[each[3][:50] for each in BAD])
def test_bad_experiments_name_file_and_key(
    tmp_path: Path, good: str, old: str, new: str, message: str
) -> None:
    assert old in good
    path = tmp_path / "e.toml"
    spoiled = good.replace(old, new, 1)
    if spoiled.count("global_batch") > 1:
        spoiled = spoiled.replace("global_batch = 12", "")
    path.write_text(spoiled)
    with pytest.raises(MpisimError) as caught:
        prepare(load(path)[1])
    assert caught.value.exit_code == 2
    found = str(caught.value)
    assert message in found
    assert "\n" not in found
    assert found.startswith(f"{path}: ")


@pytest.mark.parametrize("good", [SMALL, SEQUENCES, MIXTURE, VISION, CLICKS])
def test_what_the_bad_ones_are_made_of_is_good(good: str) -> None:
    prepare(read(good, "good"))


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load(tmp_path / "missing.toml")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        load(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"title = '\xff'")
    with pytest.raises(InputError, match=r"not a text file in UTF-8 \(line 1, byte 9\)"):
        load(binary)


@pytest.mark.parametrize(
    "model",
    [
        'preset = "vit-b-16"\nimage = 384',
        'family = "vit"\nlayers = 3\nhidden = 64\nheads = 4\nimage = 384',
        'family = "vit"\nlayers = 3\nhidden = 64\nheads = 4\nimage = 336\npatch = 14',
    ],
)
def test_images_of_any_size_have_a_token_for_each_patch(model: str) -> None:
    """(384 / 16)² = (336 / 14)² = 576 patches, and the class (ViT, arXiv:2010.11929, 3.1)."""
    text = f'[model]\n{model}\n[plan]\nglobal_batch = 8\n[cluster]\npreset = "dgx-h100"'
    experiment = read(text, "vit")
    assert isinstance(experiment.model, Transformer)
    assert experiment.model.seq_len == 577
    assert experiment.guess is None
    with pytest.raises(InputError, match="seq_len is 100"):
        read(text.replace("[plan]", "seq_len = 100\n[plan]"), "vit")
    with pytest.raises(InputError, match="not a multiple of patch"):
        read(text, "vit", ["model.image=383"])
