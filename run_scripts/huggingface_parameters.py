"""Classes of ``transformers`` → how many parameters each has: what config files are tested against.

``tests/huggingface_parameters.json`` has, of each class for causal language models that can be
built from its own defaults, the release of ``transformers``, the sizes as a ``config.json`` writes
them and the number of parameters, counted without allocating any. Without ``--refresh`` the file
is compared with the release that is installed.

    PYTHONPATH=build/frameworks/lib/python3.11/site-packages \\
        python run_scripts/huggingface_parameters.py [--refresh]

Needs ``transformers`` and PyTorch (run_scripts/get_frameworks.sh).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[1] / "tests" / "huggingface_parameters.json"

WITHOUT_MEANING = (
    "_name_or_path",
    "architectures",
    "chunk_size_feed_forward",
    "dtype",
    "id2label",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "transformers_version",
    "use_cache",
)
"""Keys that say nothing of a model's size."""

EXTRA = {"num_nextn_predict_layers": 0}
"""Modules of multi-token prediction, which the classes leave out."""


def main() -> int:
    """Count, and write or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--refresh", action="store_true", help="write the table anew")
    refresh = parser.parse_args().refresh
    try:
        found = _counted()
    except ImportError as error:
        print(f"{error}: run_scripts/get_frameworks.sh installs it", file=sys.stderr)
        return 2
    if refresh:
        rows = [
            f"{json.dumps(name)}: {json.dumps(each, sort_keys=True)}"
            for name, each in found["classes"].items()
        ]
        TABLE.write_text(
            f'{{"transformers": {json.dumps(found["transformers"])}, "classes": {{\n'
            + ",\n".join(rows)
            + "\n}}\n"
        )
        print(f"{TABLE}: {len(found['classes'])} classes of transformers {found['transformers']}")
        return 0
    known = json.loads(TABLE.read_text())["classes"]
    moved = [
        f"{name}: {known[name]['parameters']:,} before, {each['parameters']:,} now"
        for name, each in found["classes"].items()
        if name in known and each["parameters"] != known[name]["parameters"]
    ]
    new = sorted(found["classes"].keys() - known.keys())
    print("\n".join(moved) or f"{len(known)} classes: equal")
    if new:
        print(f"not in the table: {', '.join(new)}")
    return 1 if moved else 0


def _counted() -> dict[str, Any]:
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    transformers.logging.set_verbosity_error()
    classes = {}
    for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        try:
            config = transformers.AutoConfig.for_model(name)
            heads = getattr(config, "num_attention_heads", None)
            if heads and getattr(config, "num_key_value_heads", None) == heads and heads % 2 == 0:
                config.num_key_value_heads = heads // 2  # so that they differ
            with torch.device("meta"):
                model = transformers.AutoModelForCausalLM.from_config(config)
        except Exception:  # classes whose defaults make no model: each fails in its own way
            continue
        table = json.loads(config.to_json_string(use_diff=False))
        classes[name] = {
            "parameters": sum(each.numel() for each in model.parameters()),
            "config": {
                key: EXTRA.get(key, value)
                for key, value in table.items()
                if key not in WITHOUT_MEANING and not key.endswith("token_id") and value is not None
            },
        }
    return {"transformers": transformers.__version__, "classes": classes}


if __name__ == "__main__":
    sys.exit(main())
