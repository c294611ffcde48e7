"""Short names of kernels: those that differ stay different."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mpisim.report.kernel_names import short_names

CAT = (
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<at::native::"
    "(anonymous namespace)::OpaqueType<4u>, unsigned int, {}, 128, 1>({}, at::native::(anonymous "
    "namespace)::CatArrInputTensorMetadata<128>, unsigned int)"
)


def test_what_tells_templates_apart_is_kept() -> None:
    names = [CAT.format(dimensions, "char*") for dimensions in (1, 2, 3)]
    short = short_names(names, 50)
    assert len(set(short)) == 3
    assert all(len(name) <= 50 and name.startswith("CatArrayBatchedCopy") for name in short)
    ends = [name.partition("<")[2] for name in short]
    assert all(str(d) in end for d, end in zip((1, 2, 3), ends, strict=True))


def test_parameters_are_kept_where_they_differ() -> None:
    names = [CAT.format(2, kind) for kind in ("char*", "float*")]
    one, two = short_names(names, 60)
    assert ("char" in one, "float" in two) == (True, True)


def test_short_names_stay() -> None:
    names = ["volta_sgemm_128x64_tn", "Memcpy DtoH (Device -> Pageable)"]
    assert short_names(names, 40) == names


TOKENS = st.sampled_from(["float", "half", "at::native::", "<", ">", "(", ")", ", ", "a" * 30, "4"])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(TOKENS, min_size=1, max_size=30).map("".join), min_size=1, max_size=12),
    st.integers(12, 80),
)
def test_names_that_differ_stay_different(names: list[str], width: int) -> None:
    short = short_names(names, width)
    assert all(len(name) <= width for name in short)
    said = {" ".join(name.split()): shown for name, shown in zip(names, short, strict=True)}
    assert len(set(said.values())) == len(said)
