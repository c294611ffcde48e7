"""Traces with operators → which launched what, and what models say of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from operator_traces import BF16, Recording, linear_layer

from mpisim.base.errors import TraceError
from mpisim.base.text import percentage
from mpisim.cli import main
from mpisim.engine import simulate
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.kernels.operations import Copy, Elementwise, Gemm
from mpisim.operators.pricing import OperatorPricing
from mpisim.program import Kind
from mpisim.replay import read_job
from mpisim.results.step_times import step_times
from mpisim.traces.et_program import execution_traces, host_overhead_times, price_job
from mpisim.traces.gradients import Partners
from mpisim.traces.kineto_file import read_kineto
from mpisim.traces.operator_calls import launched_calls


def test_the_outermost_known_operator_launches(tmp_path: Path) -> None:
    calls = launched_calls(read_kineto(linear_layer().write(tmp_path / "rank0.json")))
    assert [(each.call.name, each.launched.known) for each in calls] == [
        ("aten::linear", True),
        ("my::operator", False),
        ("aten::add_", True),
        ("(no operator)", False),
    ]
    assert calls[0].launched.kernels == (Gemm(64, 16, 32),)
    assert calls[1].launched.kernels == (Elementwise(8 * 4 * 4),)
    assert [each.ops for each in calls] == [(0,), (1,), (2,), (3,)]


def test_gradients_know_what_their_forward_was_given(tmp_path: Path) -> None:
    found = Recording()
    q = [[1024, 8, 64]] * 3 + [[5]]
    types = [BF16] * 3 + ["int"]
    found.operator("FlashAttnVarlenFunc", 10, 20, q, types, **{"Sequence number": 4})
    found.kernel("forward", 12, 30, 35)
    more = {"Sequence number": 4, "Fwd thread id": 1}
    found.operator("FlashAttnVarlenFuncBackward", 40, 50, q[:1], types[:1], **more)
    found.kernel("backward", 42, 60, 75)
    forward, back = launched_calls(read_kineto(found.write(tmp_path / "rank0.json")))
    assert forward.launched.kernels[0].flops == 4 * 8 * 256**2 / 2 * 2 * 2 * 64
    assert back.launched.kernels[0].flops * 2 == forward.launched.kernels[0].flops * 5


def test_gradients_give_results_their_shapes(tmp_path: Path) -> None:
    """Strides of a convolution were not recorded by older builds."""
    found = Recording()
    sizes = [[2, 3, 32, 32], [8, 3, 3, 3]]
    found.operator("aten::convolution", 10, 20, sizes, [BF16] * 2, **{"Sequence number": 1})
    found.kernel("convolve", 12, 30, 35)
    more = {"Sequence number": 1, "Fwd thread id": 1}
    found.operator("ConvolutionBackward0", 40, 60, [[2, 8, 16, 16]], [BF16], **more)
    (call,) = launched_calls(read_kineto(found.write(tmp_path / "rank0.json")))
    assert call.launched.known
    assert sum(each.flops for each in call.launched.kernels) == 2 * 2 * 16**2 * 8 * 3 * 9


def test_what_was_parted_gives_the_size_of_what_is_put_together(tmp_path: Path) -> None:
    found = Recording()
    given = [[64, 6], []]
    number = {"Sequence number": 5}
    found.operator("aten::split_with_sizes", 10, 20, given, [BF16, ""], **number)
    evaluates = "autograd::engine::evaluate_function: SplitWithSizesBackward0"
    found.operator(evaluates, 30, 60, **number)
    found.operator("SplitWithSizesBackward0", 31, 59, **number)
    found.operator("aten::cat", 32, 58, [[], []], ["TensorList", "Scalar"])
    found.kernel("cat", 40, 70, 75)
    found.operator("aten::cat", 80, 90, [[], []], ["TensorList", "Scalar"])
    found.kernel("cat", 85, 95, 99)
    calls = launched_calls(read_kineto(found.write(tmp_path / "rank0.json")))
    assert [each.launched.known for each in calls] == [True, False]
    assert calls[0].launched.kernels == (Elementwise(2 * 2 * 64 * 6),)


def test_names_decide_where_numbers_are_shared() -> None:
    names = ["aten::detach", "FusedNorm", "aten::mul", "FusedNormBackward", "MulBackward0"]
    partners = Partners(names, [8, 8, 9, 8, 9])
    assert [partners.gradient(i) for i in range(3)] == [-1, 3, 4]
    assert [partners.forward(i) for i in (3, 4)] == [1, 2]
    lookup = "fbgemm::split_embedding_codegen_lookup_adagrad_function"
    node = "torch::autograd::CppNode<SplitLookupFunction_adagrad_Op>"
    other = "fbgemm::dense_embedding_codegen_lookup_function"
    assert Partners([other, lookup, node], [-1, -1, 3]).forward(2) == 1
    rows = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
    node_of_rows = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"
    assert Partners([rows, node], [-1, 3]).forward(1) == -1
    # The gradient of the first lookup is computed last, and has the lower number.
    names = [node_of_rows, rows, rows, node_of_rows, node_of_rows]
    pairs = Partners(names, [5, -1, -1, 8, 7])
    assert [pairs.forward(i) for i in (0, 3, 4)] == [-1, 2, 1]
    assert [pairs.gradient(i) for i in (1, 2)] == [4, 3]
    assert Partners([other, node.replace("adagrad", "Dense")], [-1, 3]).forward(1) == 0


def test_operators_are_compared_with_their_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, figures = linear_layer().write(tmp_path / "rank0.json"), tmp_path / "out.json"
    assert main(["validate", "operators", str(path), "--json", str(figures)]) == 0
    text = capsys.readouterr().out
    assert "aten::linear" in text
    assert "my::operator" in text
    (case,) = json.loads(figures.read_text())["cases"]
    assert case["gpu"] == "a100-sxm"
    assert case["measured"] == pytest.approx((7 + 2 + 3 + 1) * 1e-6)
    assert case["named"] == pytest.approx(10 / 13)
    model = Analytical(find_gpu("a100-sxm"))
    expected = sum(
        model.estimate(each).duration for each in (Gemm(64, 16, 32), Elementwise(3 * 128))
    )
    assert case["error"] == pytest.approx(expected / 10e6 - 1)


def test_bad_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = linear_layer()
    unknown.gpu = "Imaginary 9000"
    bare = Recording()
    bare.operator("aten::mm", 1, 5)
    bare.kernel("gemm", 2, 10, 12)
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        ([unknown.write(tmp_path / "u.json")], "'Imaginary 9000', which is not known; --gpu"),
        ([bare.write(tmp_path / "b.json")], "record_shapes=True"),
        ([tmp_path / "u.json", "--gpu", "a1000"], "unknown GPU 'a1000'"),
        ([tmp_path / "empty"], "no Kineto trace"),
    ):
        assert main(["validate", "operators", *map(str, arguments)]) == 2
        assert words in capsys.readouterr().err


class Graph:
    """An execution trace written node by node, in the layout of schema 1.0.1."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.add("[pytorch|profiler|execution_graph|process]", parent=1, scope=7)
        self.add("[pytorch|profiler|execution_graph|thread]", parent=1, scope=7)

    def add(self, name: str, *inputs: Any, out: Any = None, parent: int = 2, **more: Any) -> int:
        """Add a node; tensors are (type, sizes, device)."""
        number = len(self.nodes) + 1
        facts = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0}
        node = {"id": number, "name": name, "parent": parent, "op_schema": "x", **facts, **more}
        for side, values in (("input", inputs), ("output", () if out is None else (out,))):
            node[f"{side}s"] = [self._value(each) for each in values]
            node[f"{side}_shapes"] = [self._sizes(each) for each in values]
            node[f"{side}_types"] = [self._kind(each) for each in values]
        self.nodes.append(node)
        return number

    def _value(self, value: Any) -> Any:
        if isinstance(value, tuple):
            elements = int(np.prod(value[1]))
            return [100 + len(self.nodes), 100 + len(self.nodes), 0, elements, 4, value[2]]
        return [self._value(each) for each in value] if isinstance(value, list) else value

    def _sizes(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return list(value[1])
        return [self._sizes(each) for each in value] if isinstance(value, list) else []

    def _kind(self, value: Any) -> str:
        if isinstance(value, tuple):
            return f"Tensor({value[0]})"
        if isinstance(value, list):
            return f"GenericList[{','.join(map(self._kind, value))}]"
        return {bool: "Bool", int: "Int", str: "String"}[type(value)]

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({"schema": "1.0.1", "pid": 3, "nodes": self.nodes}))
        return path


def on_gpu(*sizes: int) -> tuple[str, tuple[int, ...], str]:
    return "float", sizes, "cuda:0"


def on_cpu(*sizes: int) -> tuple[str, tuple[int, ...], str]:
    return "float", sizes, "cpu"


def small_step(rank: int, folder: Path) -> Path:
    """A copy to the GPU, a layer, an all-reduce, its wait, an addition, the loss read."""
    graph, elements = Graph(), 1024
    mark = graph.add("## forward ##", scope=7)
    to = graph.add("aten::to", on_cpu(64, 32), parent=mark)
    graph.add("aten::copy_", on_gpu(64, 32), on_cpu(64, 32), False, parent=to)
    linear = graph.add("aten::linear", on_gpu(64, 32), on_gpu(16, 32), parent=mark)
    graph.add("aten::mm", on_gpu(64, 32), on_gpu(32, 16), parent=linear)
    graph.add("aten::view", on_gpu(64, 16), parent=mark)
    reduce = graph.add("c10d::allreduce_", [on_gpu(elements)])
    graph.add(
        "record_param_comms", on_gpu(elements), 5, 0, rank, "allreduce", [], [], parent=reduce
    )
    graph.add("record_param_comms", 5, 0, rank, "wait", [], [])
    graph.add("aten::add_", on_gpu(elements), on_gpu(elements), 1)
    item = graph.add("aten::item", on_gpu(1))
    graph.add("aten::_local_scalar_dense", on_gpu(1), parent=item)
    return graph.write(folder / f"et_rank{rank}.json")


def test_rows_of_an_execution_trace(tmp_path: Path) -> None:
    gpu = find_gpu("v100-sxm2-32gb")
    files = [small_step(rank, tmp_path) for rank in range(2)]
    job = price_job(execution_traces([str(tmp_path)]), gpu)
    assert [*job.ranks] == [0, 1]
    assert files == execution_traces([str(each) for each in files])
    table = job.program.tables[0]
    names = [job.program.names[i] for i in table.name.tolist()]
    assert names[:2] == ["aten::copy_", "aten::linear"]
    assert names[3:5] == ["aten::add_", "aten::_local_scalar_dense"]
    kinds = [Kind.COPY, Kind.KERNEL, Kind.COLLECTIVE, Kind.KERNEL, Kind.COPY, Kind.HOST_WAIT]
    assert table.kind[:6].tolist() == kinds
    model = Analytical(gpu)
    kernels = {
        0: Copy(64 * 32 * 4, path="host"),
        1: Gemm(64, 16, 32, dtype="fp32", output="fp32"),
        3: Elementwise(3 * 4096),
    }
    for row, kernel in kernels.items():
        assert table.duration[row] == model.estimate(kernel).duration
    assert table.bytes[2] == 4096
    # Lin et al.: T1 + T2 before the first launch, then T3 + T1 + T2, a view T5 more.
    times = {name: round(getattr(host_overhead_times(gpu), name).si * 1e12) for name in TIMES}
    first, usual = times["T1"] + times["T2"], times["T3"] + times["T1"] + times["T2"]
    assert table.host[:2].tolist() == [first, usual]
    assert table.host[2] == usual + times["T1"] + times["T5"]
    assert set(table.launch_cost[:5].tolist()) == {times["T4"]}
    assert job.named == pytest.approx(2 * table.duration[[0, 1, 3, 4]].sum() / 1e12)


TIMES = ("T1", "T2", "T3", "T4", "T5")


def test_measured_times_come_before_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_step(0, tmp_path)
    times = tmp_path / "times.csv"
    times.write_text(
        "operator,shapes,types,time_us\n"
        "aten::linear,64x32 16x32,float32 float32,33\n"
        "aten::add_,512 512,float32 float32,8\n"
        "aten::add_,2048 2048,float32 float32,32\n"
    )
    folder = tmp_path / "et"
    folder.mkdir()
    small_step(0, folder)
    words = ["replay", str(folder), "--cluster", "dgx-v100", "--json", str(tmp_path / "out.json")]
    assert main([*words, "--measured", str(times), "--details"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    by = json.loads((tmp_path / "out.json").read_text())["priced"]["by"]
    assert by["exact"] == pytest.approx(33e-6)
    assert by["interpolated"] == pytest.approx(16e-6)
    share = 33e-6 / sum(by.values())
    assert f"of kernel time {percentage(share, 1)} as measured" in shown


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_step_is_priced_on_any_number_of_processes(
    ranks: int, tmp_path: Path, run_mpisim: Callable[..., Any]
) -> None:
    for rank in range(ranks):
        small_step(rank, tmp_path)
    arguments = ["replay", str(tmp_path), "--cluster", "dgx-v100", "--details"]
    said = {
        next(line for line in run_mpisim(arguments, n).stdout.splitlines() if "digest" in line)
        for n in (1, 2)
    }
    assert len(said) == 1


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--gpu", "v100"], "needs --cluster"),
        (["--cluster", "dgx-v200"], "did you mean 'dgx-v100'"),
        (["--cluster", "dgx-v100", "--delay", "0:1"], "--delay: of recorded times"),
        (["--cluster", "dgx-v100", "--scale-host", "0.5"], "--scale-host: of recorded times"),
        ([], "with --cluster prices it"),
    ],
)
def test_pricing_is_refused_in_one_line(
    more: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(small_step(0, tmp_path)), *more]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_traces_without_a_gpu_or_without_a_partner_are_refused(tmp_path: Path) -> None:
    gpu = find_gpu("a100")
    graph = Graph()
    graph.add("aten::add_", on_cpu(4), on_cpu(4), 1)
    with pytest.raises(TraceError, match="no operator here has a tensor on a GPU"):
        price_job([graph.write(tmp_path / "et.json")], gpu)
    with pytest.raises(TraceError, match="rank 1 is already given"):
        price_job([small_step(1, tmp_path)] * 2, gpu)
    kineto = linear_layer().write(tmp_path / "kineto.json")
    with pytest.raises(TraceError, match="not an execution trace"):
        execution_traces([str(kineto)])


def test_dlrm_from_its_execution_traces_alone(shared: Path, comm: Any) -> None:
    """Within 10 % of the recorded step, without the ranks' late arrivals, which it cannot know.

    The data of CPU times is of other jobs. The recording is replayed with all ranks beginning at
    once; the ranks entered it up to 8 ms apart.
    """
    folder = str(shared / "traces" / "dlrm_v100_8rank")
    job = read_job([folder], comm)
    program = job.program.replace(start=np.zeros(job.program.n_ranks, np.int64))
    run = simulate(program, comm, placement=job.placement)
    measured = max(
        comm.allgather(
            max(
                max(step_times(table, program.names, rows.begin, rows.end).values())
                for i, index in enumerate(run.hosted.tolist())
                for table, rows in [(program.tables[index], run.rows(i))]
            )
        )
    )
    assert measured / 1e12 == pytest.approx(14.36e-3, rel=1e-3)
    from mpisim.prediction.network import network_of
    from mpisim.simulate import simulate as predict
    from mpisim.topo.cluster import find_cluster

    priced = price_job(execution_traces([folder]), find_gpu("v100-sxm2-32gb"))
    results = predict(priced.program, network=network_of(find_cluster("dgx-v100"), 1))
    assert results is not None
    assert results.step_time == pytest.approx(measured / 1e12, rel=0.1)
    lookups = [each for each in priced.program.names if "lookup" in each]
    assert lookups
    assert priced.unknown < 0.01 * priced.named


def test_kernels_say_that_products_are_in_tf32(tmp_path: Path) -> None:
    found = Recording()
    for at, kernel in ((10, "ampere_sgemm_128x64_nn"), (100, "cutlass_80_tensorop_s1688gemm_64")):
        found.operator("aten::mm", at, at + 20, [[64, 32], [32, 16]], ["float", "float"])
        found.kernel(kernel, at + 5, at + 30, at + 40)
    calls = launched_calls(read_kineto(found.write(tmp_path / "rank0.json")))
    kernels = [each.launched.kernels for each in calls]
    fp32 = Gemm(64, 16, 32, dtype="fp32", output="fp32")
    assert kernels == [(fp32,), (Gemm(64, 16, 32, dtype="tf32", output="fp32"),)]


def test_kernels_say_that_rows_are_of_an_odd_length(tmp_path: Path) -> None:
    found = Recording()
    name = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_32x3_tn_align"
    for at, aligned in ((10, "4"), (100, "1")):
        found.operator("aten::mm", at, at + 20, [[64, 32], [32, 16]], ["float", "float"])
        found.kernel(f"{name}{aligned}>", at + 5, at + 30, at + 40)
    calls = launched_calls(read_kineto(found.write(tmp_path / "rank0.json")))
    variants = [each.launched.kernels[0].variant for each in calls]
    assert variants == [None, "single_words"]
    (slow,) = calls[1].launched.kernels
    model = OperatorPricing(find_gpu("v100-sxm2-32gb"))  # which has no tf32
    assert model.price(calls[1].launched).kernels == (replace(slow, dtype="fp32", variant=None),)


def test_linear_layers_that_copy_and_add_are_taken_apart(tmp_path: Path) -> None:
    """An input of three dimensions that does not lie densely, as PyTorch 1.13 records it."""
    found, kind = Recording(), ["float"] * 3
    found.operator("aten::linear", 10, 60, [[4, 8, 32], [16, 32], [16]], kind)
    found.operator("aten::matmul", 12, 45, [[4, 8, 32], [32, 16]], kind[:2])
    found.operator("aten::reshape", 14, 24, [[4, 8, 32], []], ["float", "ScalarList"])
    found.kernel("copy", 15, 100, 104)
    found.operator("aten::mm", 30, 40, [[32, 32], [32, 16]], kind[:2])
    found.kernel("ampere_sgemm_32x128_tn", 32, 110, 120)
    found.operator("aten::add_", 50, 58, [[4, 8, 16], [16], []], ["float", "float", "Scalar"])
    found.kernel("add", 52, 130, 133)
    calls = launched_calls(read_kineto(found.write(tmp_path / "rank0.json")))
    assert [each.call.name for each in calls] == ["aten::reshape", "aten::mm", "aten::add_"]
    assert all(each.launched.known for each in calls)


def test_sums_are_of_columns_where_a_kernel_says_so(tmp_path: Path) -> None:
    found = Recording()
    for at, kernel in ((10, "void reduce_kernel<128, 4, Op>"), (100, "void reduce_kernel<512, 1>")):
        found.operator("aten::sum", at, at + 20, [[64, 32], [], []], ["float", "", ""])
        found.kernel(kernel, at + 5, at + 30, at + 40)
    calls = launched_calls(read_kineto(found.write(tmp_path / "rank0.json")))
    columns, other = (each.launched.kernels for each in calls)
    assert columns == (Elementwise(4 * (64 * 32 + 32), summed=64, sums=32),)
    assert other == (Elementwise(4 * (64 * 32 + 1)),)


@pytest.mark.parametrize(("dims", "rows"), [("[0]", 8), ("[0,1]", 8 * 64)])
def test_recorded_dimensions_say_which_columns(tmp_path: Path, dims: str, rows: int) -> None:
    found, shape = Recording(), [8, 64, 32]
    concrete = {"Concrete Inputs": ["", dims, "False"]}
    found.operator("aten::sum", 10, 30, [shape, [], []], ["float", "", ""], **concrete)
    found.kernel("void reduce_kernel<128, 4, Op>", 15, 40, 50)
    (call,) = launched_calls(read_kineto(found.write(tmp_path / "rank0.json")))
    sums = 8 * 64 * 32 // rows
    expected = Elementwise(4 * (8 * 64 * 32 + sums), summed=rows, sums=sums)
    assert call.launched.kernels == (expected,)


def test_kernels_beside_others_are_told_apart(tmp_path: Path) -> None:
    found = Recording()
    for at in (10, 100, 200):
        found.operator("aten::mul", at, at + 20, [[64, 32], [64, 32]], ["float", "float"])
        found.kernel("multiply", at + 5, at + 30, at + 40)
    found.kernel("ncclDevKernel_AllReduce", 90, 139, 160, stream=20)  # beside the second
    path, figures = found.write(tmp_path / "rank0.json"), tmp_path / "out.json"
    assert main(["validate", "operators", str(path), "--json", str(figures)]) == 0
    (case,) = json.loads(figures.read_text())["cases"]
    assert case["measured"] == pytest.approx(30e-6)
    assert case["alone"] == pytest.approx(2 / 3)
    assert case["error_alone"] == pytest.approx(case["error"])  # all take as long


def test_what_has_no_shapes_is_told_beside_the_share_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = linear_layer()  # of 13 µs: named 10, an operator with shapes 2, a lone kernel 1
    found.operator("vllm::moe_forward", 200, 230, [[8, 4], [8, 2], []], [BF16, BF16, ""])
    found.kernel("experts", 210, 240, 253)
    path = found.write(tmp_path / "rank0.json")
    figures = tmp_path / "out.json"
    assert main(["validate", "operators", str(path), "--json", str(figures)]) == 0
    said = json.loads(figures.read_text())
    (case,) = said["cases"]
    assert case["named"] == said["named"] == pytest.approx(10 / 26)
    assert case["shapeless"] == pytest.approx(14 / 26)
    assert case["named_of_shaped"] == said["named_of_shaped"] == pytest.approx(10 / 12)
    unknown = {each["name"]: each["shaped"] for each in said["unknown"]}
    assert unknown == {"vllm::moe_forward": False, "my::operator": True, "(no operator)": False}
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("vllm")).endswith("no shapes")
    assert any(line.endswith("of what has shapes 83.3 %") for line in lines)


def test_recorded_traces_are_named_and_priced(shared: Path, tmp_path: Path) -> None:
    """Shares and errors of the traces that record shapes; see docs/operators.md."""
    folders = ("opt1.3b_zero1_v100_rank0of8", "megatron_gpt_tp2pp2dp2_a800_8rank")
    files = [str(shared / "traces" / each / "kineto_rank0.json.gz") for each in folders]
    assert main(["validate", "operators", *files, "--json", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["median"] < 0.07
    assert found["named"] > 0.97
