"""The largest real trace gives one digest on any number of processes, wherever its ranks lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("trace_digests.py")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "trace",
    ["megatron_gpt_tp2pp2dp2_a800_8rank", "dlrm_v100_8rank", "torchrec_dlrm_fp32_v100_4rank"],
)
def test_digest(trace: str, shared: Path, run_mpisim: Callable[..., object]) -> None:
    folder = shared / "traces" / trace
    if not folder.is_dir():
        pytest.skip(f"no trace at {folder}")
    done = run_mpisim([folder], 8, program=SCRIPT, timeout=500)
    assert done.rc == 0, done.stderr  # type: ignore[attr-defined]
    lines = [line.split() for line in done.stdout.splitlines()]  # type: ignore[attr-defined]
    assert [line[0] for line in lines] == ["1", "2", "3", "3", "4", "8", "8"]
    assert len({(digest, step) for _, _, digest, step in lines}) == 1, lines
