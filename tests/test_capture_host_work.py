"""What the CPU does with parameters in its memory in captured steps, beside counts by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from captures import alone, needs_torch, script, written

from mpisim.base.errors import InputError
from mpisim.base.kinds import Kind
from mpisim.capture.lower import program_of
from mpisim.capture.recording import ItemKind
from mpisim.extrapolate import read_step
from mpisim.kernels import find_gpu
from mpisim.kernels.analytical import Analytical
from mpisim.program import save
from mpisim.workloads.host import cluster_host

pytestmark = [pytest.mark.timeout(400), needs_torch]

ON_CPU = """
import sys
import torch
model = torch.nn.Linear(1024, 1024, bias=False)
optimizer = torch.optim.AdamW(model.parameters(), fused=sys.argv[1] == "fused")
for _ in range(3):
    weight = model.weight.to("cuda", torch.bfloat16)
    x = torch.randn(8, 1024, device="cuda", dtype=torch.bfloat16)
    torch.nn.functional.linear(x, weight).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("how", "loops"), [("fused", False), ("loop", True)])
def test_the_cpu_takes_its_time_for_what_is_in_its_memory(
    tmp_path: Path, how: str, loops: bool
) -> None:
    part = alone(script(written(tmp_path, ON_CPU), how))[0]
    work = [item for item in part.recording.items if item.kind is ItemKind.HOST_WORK]
    numbers = 1 << 20
    assert [(item.name, item.bytes) for item in work] == [
        ("conversion on CPU", (4 + 2) * numbers),  # where the CPU waits for a copy, it converts,
        ("conversion on CPU", (2 + 4) * numbers),  # and 2 bytes a number go either way
        ("linalg_vector_norm on CPU", 4 * numbers + 4),
        ("mul_ on CPU", 8 * numbers + 4),
        ("optimizer on CPU", 28 * numbers + (4 + 4 if how == "loop" else 8)),
    ]
    assert [item.bytes for item in part.recording.items if item.kind is ItemKind.COPY] == [
        2 * numbers,
        2 * numbers,
    ]
    host = cluster_host("dgx-h100", 8, 1)
    program = program_of([part], Analytical(find_gpu("h100-sxm")), host=host)
    table = program.table_of(0)
    rows = [i for i in range(len(table)) if program.names[table.name[i]] == "optimizer on CPU"]
    share = (host.loop_share if loops else host.share).value
    assert table.duration[rows[0]] / 1e12 == pytest.approx(
        work[-1].bytes / host.bandwidth.si / share
    )
    assert table.kind[rows[0] + 1] == Kind.HOST_WAIT  # the CPU does nothing else meanwhile


def test_a_step_on_the_cpu_is_not_extrapolated(tmp_path: Path) -> None:
    part = alone(script(written(tmp_path, ON_CPU), "fused"))[0]
    host = cluster_host("dgx-h100", 8, 1)
    save(program_of([part], Analytical(find_gpu("h100-sxm")), host=host), tmp_path / "step.h5")
    with pytest.raises(InputError, match=r"the CPU works on 6,291,456 bytes in the step \(conver"):
        read_step(tmp_path / "step.h5")
