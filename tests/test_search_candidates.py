"""Candidates of a search, made of what they share, beside experiments read one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mpisim.base.errors import InputError
from mpisim.experiment import Transformer
from mpisim.experiment.load import model_of
from mpisim.experiment.profile_filling import Filler, filled
from mpisim.experiment.profiles import profiles
from mpisim.search import read_search
from mpisim.search.explore import Candidates

VARIED = {
    "plan": {
        "tp": [1, 2, 8],
        "pp": [1, 4],
        "vpp": [1, 3],
        "micro_batch": [1, 2, 5],
        "zero": [0, 1, 2, 3],
        "recompute": ["none", "selective", "full"],
        "precision": ["bf16", "fp8"],
    },
    "cluster": {"nodes": [1, 4]},
}


@pytest.mark.parametrize("model", ["gpt3-350m", "mixtral-8x7b"])
def test_candidates_are_the_experiments_of_the_space(model: str) -> None:
    """In whatever order they come; an error says at least what reading the plan says."""
    space = read_search(
        {
            "model": {"preset": model},
            "plan": {"global_batch": 120},
            "cluster": {"preset": "dgx-h100"},
            "search": {"vary": VARIED},
        },
        "search.toml",
    )
    candidates = Candidates(space)
    refused: dict[int, str] = {}
    for number in np.random.default_rng(7).permutation(len(space))[:400].tolist():
        try:
            expected = space.experiment(number)
        except InputError as error:
            refused[number] = str(error)
            continue
        experiment, _ = candidates.experiment(number)
        assert experiment == replace(expected, run=replace(expected.run, allow_oom=True))
    assert 0 < len(refused) < 400
    for number, text in refused.items():
        with pytest.raises(InputError) as found:
            candidates.experiment(number)
        assert text.startswith(str(found.value))


def test_what_profiles_fill_in_depends_on_keys_that_they_look_at_alone() -> None:
    """Values of other keys of a plan change nothing of what is filled in."""
    base: dict[str, Any] = {"model": {"preset": "mixtral-8x7b"}, "cluster": {"preset": "dgx-h100"}}
    model = model_of(base["model"], "test")
    assert isinstance(model, Transformer)
    keys = {"tp": 2, "pp": 2, "vpp": 2, "cp": 2, "ep": 2, "zero": 1, "sp": True, "micro_batch": 2}
    for profile in profiles():
        named = base | {"framework": {"name": profile.name}, "plan": {}}
        looked_at = Filler(named, model, "test").looks_at
        for key, value in keys.items():
            if key not in looked_at:
                changed = named | {"plan": {key: value}}
                expected = dict(filled(named, model, "test")[1])
                expected.pop(f"plan.{key}", None)
                assert filled(changed, model, "test")[1] == expected
