"""Readers of measured kernel times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpisim.base.errors import InputError
from mpisim.kernels.measured import TEST, TRAIN, gpu_name, read, select
from mpisim.kernels.operations import (
    Convolution,
    Elementwise,
    Embedding,
    Gemm,
    GroupedGemm,
    Norm,
    Softmax,
)

HEADERS = {
    "products": "op,gpu,split,B,M,N_contract,K_out,latency_ms,kernel",
    "vector": "op,gpu,split,B,H,latency_ms",
    "convolutions": "op,gpu,batch,c_in,c_out,ksize,in_size,stride,pad,latency_ms",
    "half": ",B,M,N,K,Latency,pred,err",
    "vidur products": "gpu,model,op,tp,M,N,K,median_ms,min_ms",
    "vidur": "gpu,model,op,tp,tokens,width,median_ms",
    "deepgemm": "kind,gpu,dtype,groups,M_per_group,N,K,TFLOPS,mem_GBps,derived_time_us",
    "fastest": "gpu,dtype,best_TFLOPS,peak_TFLOPS,best_MxNxK,software,source",
}


def write(folder: Path, header: str, *rows: str) -> Path:
    path = folder / "rows.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("header", "row", "gpu", "dtype", "kernel", "seconds", "launched"),
    [
        (
            "products",
            "bmm,V100-PCIe-32GB,test,384,128,64,100,0.5,name",
            "v100-pcie-32gb",
            "fp32",
            Gemm(128, 100, 64, 384, dtype="fp32", output="fp32"),
            5e-4,
            True,
        ),
        (
            "products",
            "linear,P100-PCIe-16GB,train,2,128,64,100,0.5,",
            "p100-pcie",
            "fp32",
            Gemm(256, 100, 64, dtype="fp32", output="fp32"),
            5e-4,
            1.8,
        ),
        ("vector", "add,P4,train,10,20,1.5", "p4", "any", Elementwise(2400), 1.5e-3, True),
        ("vector", "addu,P4,train,10,20,1.5", "p4", "any", Elementwise(1600), 1.5e-3, True),
        (
            "vector",
            "softmax,T4,train,10,20,1.5",
            "t4",
            "fp32",
            Softmax(10, 20, dtype="fp32"),
            1.5e-3,
            True,
        ),
        ("vector", "ln,T4,train,10,20,1.5", "t4", "fp32", Norm(10, 20, dtype="fp32"), 1.5e-3, True),
        (
            # (15 + 2 × 1 - 3) // 2 + 1 = 8 pixels a side
            "convolutions",
            "conv2d,T4,4,16,32,3,15,2,1,2.0",
            "t4",
            "fp32",
            Convolution(4, 16, 32, 8, 8, 3, 2),
            2e-3,
            True,
        ),
        (
            "half",
            "0,8,16,32,64,0.1,0.2,0.3",
            "h100-sxm",
            "fp16",
            Gemm(16, 64, 32, 8, dtype="fp16", output="fp16"),
            1e-4,
            True,
        ),
        (
            "vidur products",
            "A100-80GB,m,op,2,1,2,3,0.1,0.1",
            "a100-pcie-80gb",  # Vidur's, by its network tables
            "fp16",
            Gemm(1, 2, 3, dtype="fp16", output="fp16"),
            1e-4,
            False,
        ),
        (
            "vidur",
            "A40,microsoft/phi-2,emb,1,8,64,0.1",
            "a40",
            "fp16",
            Embedding(8, 64, 51200, dtype="fp16"),
            1e-4,
            False,
        ),
        (
            "vidur",
            "A40,Qwen/Qwen-72B,mlp_act,1,8,64,0.1",
            "a40",
            "any",
            Elementwise(3 * 2 * 512),
            1e-4,
            False,
        ),
        (
            "vidur",
            "A40,microsoft/phi-2,mlp_act,1,8,64,0.1",
            "a40",
            "any",
            Elementwise(2 * 2 * 512),
            1e-4,
            False,
        ),
        (
            "vidur",
            "A40,Qwen/Qwen-72B,input_layernorm,1,8,64,0.1",
            "a40",
            "fp16",
            Norm(8, 64, "rms", dtype="fp16"),
            1e-4,
            False,
        ),
        (
            "deepgemm",
            "dense,H800-SXM,fp8,1,64,128,256,1,1,9.5",
            "h800-sxm",
            "fp8",
            Gemm(64, 128, 256, dtype="fp8", output="bf16"),
            9.5e-6,
            False,
        ),
        (
            "deepgemm",
            "grouped_masked,H800-SXM,fp8,4,64,128,256,1,1,9.5",
            "h800-sxm",
            "fp8",
            GroupedGemm(256, 4, 128, 256, dtype="fp8", output="bf16"),
            9.5e-6,
            False,
        ),
        # 2 × 1000³ / 500e12
        (
            "fastest",
            "H200 SXM,fp8,500,1979,1000x1000x1000,t,s",
            "h200",
            "fp8",
            Gemm(1000, 1000, 1000, dtype="fp8", output="bf16"),
            4e-6,
            False,
        ),
    ],
)
def test_reads_every_kind(tmp_path, header, row, gpu, dtype, kernel, seconds, launched):
    (rows,), skipped = read(write(tmp_path, HEADERS[header], row))
    assert (rows.gpu, rows.dtype, rows.launched, skipped) == (gpu, dtype, launched, {})
    assert rows.kernels == (kernel,)
    assert rows.seconds == pytest.approx([seconds])
    assert rows.line.tolist() == [2]


def test_one_batch_for_each_family_gpu_and_format(tmp_path):
    path = write(
        tmp_path,
        HEADERS["vector"],
        "add,P4,train,10,20,1",
        "ln,P4,train,10,20,2",
        "softmax,P4,test,10,20,3",
        "add,T4,train,10,20,4",
    )
    rows, _ = read(path)
    assert [(each.family, each.gpu, each.dtype, len(each)) for each in rows] == [
        ("memory_bound", "p4", "any", 1),
        ("norm", "p4", "fp32", 1),
        ("softmax", "p4", "fp32", 1),
        ("memory_bound", "t4", "any", 1),
    ]
    kept = select(rows, gpus=["P4"], splits=["test"])
    assert [(each.op.tolist(), each.line.tolist()) for each in kept] == [(["softmax"], [4])]
    assert select(rows, gpus=["V100"]) == []


def test_unknown_gpus_are_counted(tmp_path):
    path = write(tmp_path, HEADERS["vector"], "add,P44,train,10,20,1", "add,P4,train,10,20,1")
    rows, skipped = read(path)
    assert len(rows) == 1
    assert skipped == {"GPU 'P44' is unknown (did you mean 'p4'?)": 1}


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("a,b,c", "1,2,3", "rows.csv: no known table of kernel times: its columns are a, b, c"),
        (HEADERS["vector"], "add,P4,train,ten,20,1", "line 2: column 'B' is 'ten'"),
        (HEADERS["vector"], "add,P4,train,10,20,0", "line 2: a time of 0 ms"),
        (HEADERS["vector"], "add,P4,train,0,20,1", "'bytes' is 0; it must be 1 or more"),
        (HEADERS["vidur"], "A40,nobody,emb,1,8,64,0.1", "line 2: column 'model' is 'nobody'"),
    ],
)
def test_bad_files(tmp_path, header, row, words):
    with pytest.raises(InputError) as error:
        read(write(tmp_path, header, row))
    assert words in str(error.value)


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError, match="the file is empty"):
        read(tmp_path / "empty.csv")


def test_division_by_shape(tmp_path):
    lines = [f"A40,m,op,1,{m},128,256,0.1,0.1" for m in range(1, 1001)]
    (rows,), _ = read(write(tmp_path, HEADERS["vidur products"], *lines, *lines))
    test = rows.split == TEST
    assert 0.15 < test.mean() < 0.25
    assert set(rows.split.tolist()) == {TEST, TRAIN}
    # Both rows of a shape are on one side.
    assert np.array_equal(rows.split[:1000], rows.split[1000:])


def test_one_die_of_an_mi250():
    assert gpu_name("MI250") == "mi210"


def test_published_files(shared):
    counts = {
        "neusight_matmul_test.csv": 17734,
        "neusight_vector.csv": 14239,
        "vidur_elementwise_fp16.csv": 14188,
        "deepgemm_fp8_h800.csv": 28,
    }
    for name, count in counts.items():
        rows, skipped = read(shared / "groundtruth" / "kernels" / name)
        assert sum(len(each) for each in rows) + sum(skipped.values()) == count
        assert not skipped


def test_sides_stay_where_they_are(tmp_path):
    # Else a model would be judged on rows that its constants were fitted to.
    lines = [f"A40,Qwen/Qwen-72B,add,1,{tokens},128,0.1" for tokens in range(1, 61)]
    (rows,), _ = read(write(tmp_path, HEADERS["vidur"], *lines))
    test = [2, 4, 9, 17, 19, 20, 21, 25, 37, 39, 47, 49, 50, 53, 60]
    assert (np.flatnonzero(rows.split == TEST) + 1).tolist() == test
