"""Published formulas of training memory, against the figures of their papers."""

from __future__ import annotations

import pytest
from published_formulas import Gpt, megatron_states, zero_states

GIB = 2**30

TWENTY_TWO = {"s": 2048, "b": 4, "h": 6144, "a": 64, "L": 48, "v": 51200}
GPT3 = {"s": 2048, "b": 1, "h": 12288, "a": 96, "L": 96, "v": 51200}
TURING = {"s": 2048, "b": 1, "h": 20480, "a": 128, "L": 105, "v": 51200}
TRILLION = {"s": 2048, "b": 1, "h": 25600, "a": 160, "L": 128, "v": 51200}

# Table I of arXiv:1910.02054: GB of model states by data-parallel size, stages 1, 2 and 3.
ZERO = {
    7_500_000_000: {
        1: (120, 120, 120),
        4: (52.5, 41.3, 30),
        16: (35.6, 21.6, 7.5),
        64: (31.4, 16.6, 1.88),
        256: (30.4, 15.4, 0.47),
        1024: (30.1, 15.1, 0.12),
    },
    128_000_000_000: {
        1: (2048, 2048, 2048),
        4: (896, 704, 512),
        16: (608, 368, 128),
        64: (536, 284, 32),
        256: (518, 263, 8),
        1024: (513, 257, 2),
    },
    1_000_000_000_000: {
        1: (16000, 16000, 16000),
        4: (7000, 5500, 4000),
        16: (4750, 2875, 1000),
        64: (4187, 2218, 250),
        256: (4046, 2054, 62.5),
        1024: (4011, 2013, 15.6),
    },
}


def test_table_2_in_all_six_variants() -> None:
    # s b h = 48 Mi elements, a s / h = 64/3, t = 8.
    sbh = 2048 * 4 * 6144
    scores = 5 * 64 * 2048 / 6144
    variants = {
        (1, False, "none"): sbh * (34 + scores),
        (8, False, "none"): sbh * (10 + 24 / 8 + scores / 8),
        (8, True, "none"): sbh / 8 * (34 + scores),
        (8, False, "selective"): sbh * (10 + 24 / 8),
        (8, True, "selective"): sbh / 8 * 34,
        (8, False, "full"): sbh * 2,
    }
    for (t, parallel, recompute), expected in variants.items():
        gpt = Gpt(**TWENTY_TWO, t=t, sequence_parallel=parallel, recompute=recompute)
        assert gpt.layer() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("model", "p", "m", "without", "both"),
    [
        (TWENTY_TWO, 1, 1, 59.25, 9.5625),
        (GPT3, 8, 3, 66.84375, 12.3515625),
        (TURING, 35, 3, 114.0234375, 23.076171875),
        (TRILLION, 64, 1, 131.25, 26.5625),
    ],
)
def test_figure_1_of_korthikanti(model: dict, p: int, m: int, without: float, both: float) -> None:
    plain = Gpt(**model, t=8, p=p, m=m)
    better = Gpt(**model, t=8, p=p, m=m, sequence_parallel=True, recompute="selective")
    assert plain.first_stage() / GIB == pytest.approx(without, rel=1e-4)
    assert better.first_stage() / GIB == pytest.approx(both, rel=1e-4)


@pytest.mark.parametrize(
    ("model", "shares"),
    [
        (TWENTY_TWO, (66.84, 49.42, 16.18, 7.64)),
        (GPT3, (62.04, 56.53, 18.49, 8.71)),
        (TURING, (58.31, 62.04, 20.27, 9.42)),
        (TRILLION, (58.31, 62.04, 20.27, 9.42)),
    ],
)
def test_figure_7_of_korthikanti(model: dict, shares: tuple[float, ...]) -> None:
    """Percent of what tensor parallelism alone keeps; read off a figure, so within 2 %."""
    whole = Gpt(**model, t=8).layer()
    variants = ((True, "none"), (False, "selective"), (True, "selective"), (False, "full"))
    for (parallel, recompute), expected in zip(variants, shares, strict=True):
        gpt = Gpt(**model, t=8, sequence_parallel=parallel, recompute=recompute)
        assert 100 * gpt.layer() / whole == pytest.approx(expected, rel=0.02)


def test_ends_of_the_model() -> None:
    one = Gpt(**TWENTY_TWO)
    tokens = 2048 * 4
    assert one.ends() == tokens * 6144 * (1 + 4) + 4 * tokens * 51200
    assert Gpt(**TWENTY_TWO, t=8, p=4, sequence_parallel=True).ends() == tokens * 6144 * 4 // 8
    # Without sequence parallelism the mask is not shared, the scores are.
    assert Gpt(**TWENTY_TWO, t=8).ends() == tokens * 6144 * 5 + 4 * tokens * 51200 // 8


@pytest.mark.parametrize("parameters", ZERO)
def test_table_1_of_zero(parameters: int) -> None:
    for n, row in ZERO[parameters].items():
        for stage, expected in enumerate(row, start=1):
            found = float(zero_states(parameters, stage, n)) / 1e9
            # As printed: three digits at least, some cut rather than rounded.
            assert found == pytest.approx(expected, rel=0.005, abs=0.01), (n, stage)


def test_megatron_reports() -> None:
    # Megatron-LM's own test: Llama-3.1-8B, tp = 2, dp = 2, the distributed optimizer.
    found = float(megatron_states(8_030_265_344, 2, True)) / 2 / GIB
    assert found == pytest.approx(44.87260437011719, rel=1e-6)
    assert megatron_states(10, 4, False) == 180
