"""What writes checkpoints: tensors are copied to the host, and no file is written.

``torch.save`` and ``safetensors.torch.save_file`` copy each storage once they write it,
``torch.distributed.checkpoint.save`` this rank's part of each tensor, and ``async_save`` the same
before it returns: the CPU waits for the copies (``_serialization.py`` and
``distributed/checkpoint/staging.py`` of PyTorch). What then goes from the host to a file takes no
time of the step.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from typing import Any

from .stand_ins.after_import import AfterImport

__all__ = ["install"]

_SAVER = "torch.distributed.checkpoint.state_dict_saver"
_SAFETENSORS = "safetensors.torch"


def install(recorder: Any) -> None:
    """Put stand-ins in the place of functions that save.

    Parameters
    ----------
    recorder : Recorder
    """
    import torch
    from torch.utils._pytree import tree_leaves

    def parts(value: Any) -> list[Any]:
        """Return this rank's tensors: of a tensor that is shared among ranks, its own part."""
        if hasattr(value, "local_shards"):
            return [each.tensor for each in value.local_shards()]
        local = value.to_local() if hasattr(value, "to_local") else value
        return [local] if isinstance(local, torch.Tensor) else []

    def copied(what: Any) -> None:
        seen: set[int] = set()
        for leaf in tree_leaves(what):
            for each in parts(leaf):
                address = each.untyped_storage()._cdata
                if each.device.type == "cuda" and address not in seen:
                    seen.add(address)
                    size = each.numel() * each.element_size()
                    recorder.copy(size, "copy to the host", blocking=True)

    def save(what: Any, *args: Any, **kwargs: Any) -> None:
        recorder.replaced["torch.save: nothing is written"] += 1
        copied(what)

    anything: Any = torch
    anything.save = save

    def change(module: Any) -> None:
        def staged(state: Any) -> None:
            recorder.replaced["torch.distributed.checkpoint: nothing is written"] += 1
            copied(module._stateful_to_state_dict(state))

        def save_parts(state_dict: Any, *args: Any, **kwargs: Any) -> None:
            staged(state_dict)

        def save_later(state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            staged(state_dict)
            stager = kwargs.get("async_stager")
            config = getattr(stager, "_config", None)
            if getattr(config, "use_async_staging", False):
                return module.AsyncSaveResponse(_done(), _done())
            return _done()

        module.save = module.save_state_dict = save_parts
        module.async_save = save_later

    def change_safetensors(module: Any) -> None:
        def save_file(tensors: Any, *args: Any, **kwargs: Any) -> None:
            recorder.replaced["safetensors: nothing is written"] += 1
            copied(tensors)

        module.save_file = save_file

    for name, changed in ((_SAVER, change), (_SAFETENSORS, change_safetensors)):
        if name in sys.modules:
            changed(sys.modules[name])
        else:
            sys.meta_path.insert(0, AfterImport(name, changed))


def _done() -> Future[None]:
    """Return a future that is done."""
    made: Future[None] = Future()
    made.set_result(None)
    return made
