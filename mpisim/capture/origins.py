"""Operator → where it is from: modules around it, autograd's node, the parameters it works on.

What ``mpisim extrapolate`` needs besides shapes. Autograd numbers the nodes that a forward pass
makes; an operator has made those up to the number that the next one gets, when it is run on shapes.
A parameter is told by its storage, which views of it share.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..base.kinds import Phase
from ..operators import TensorSpec
from .device_memory import has_storage
from .recorder import Recorder
from .recording import ACCUMULATES, Origin

__all__ = ["Origins"]

MAX_NODE_NUMBER = 1 << 62
"""Above the sequence numbers of nodes; those that accumulate gradients have the largest uint64."""


class Origins:
    """Where operators are from.

    Parameters
    ----------
    recorder : Recorder
        Its modules and parameters are filled.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._path: tuple[str, ...] = ()
        self._paths: dict[tuple[str, ...], int] = {(): 0}
        self._names: Any = WeakIdKeyDictionary()
        self._counts: Counter[str] = Counter()
        self._numbers: Any = WeakIdKeyDictionary()
        self._of_storage: dict[int, set[int]] = {}
        self._storages: list[int] = []

    def enter(self, module: torch.nn.Module) -> None:
        """A module begins to run."""
        name = self._names.get(module)
        if name is None:
            kind = type(module).__name__
            name = self._names[module] = f"{kind}_{self._counts[kind]}"
            self._counts[kind] += 1
        self._path = (*self._path, name)

    def leave(self) -> None:
        """The innermost module has ended."""
        self._path = self._path[:-1]

    def see(self, tensors: Iterable[Any]) -> None:
        """Note the parameters among what a forward pass works on.

        Parameters
        ----------
        tensors : iterable of torch.Tensor
        """
        for each in tensors:
            if not isinstance(each, torch.nn.Parameter) or not each.requires_grad:
                continue
            if not has_storage(each):
                continue
            held = each.untyped_storage()
            storage = held._cdata
            number = self._numbers.get(each)
            if number is None:
                number = self._numbers[each] = self._new(each)
            elif self._storages[number] == storage:
                continue
            else:  # parameter.data = ...
                self._of_storage.get(self._storages[number], set()).discard(number)
            self._storages[number] = storage
            if storage not in self._of_storage:
                self._of_storage[storage] = set()
                weakref.finalize(held, self._gone, storage)
            self._of_storage[storage].add(number)
            self._recorder.parameters[number] = TensorSpec(str(each.dtype)[6:], tuple(each.shape))

    def _gone(self, storage: int) -> None:
        """Forget a storage, whose address another may get."""
        for number in self._of_storage.pop(storage):
            self._storages[number] = 0

    def _new(self, parameter: Any) -> int:
        """Number a parameter, and follow its gradients."""
        number = len(self._storages)
        self._storages.append(0)
        self._recorder.parameters.append(TensorSpec("", ()))
        if self._recorder.world == 1:
            parameter.register_post_accumulate_grad_hook(
                lambda parameter: self._recorder.completed(number)
            )
        return number

    def of(self, tensors: Iterable[Any]) -> Origin:
        """Return where an operator on some tensors is from.

        Parameters
        ----------
        tensors : iterable of torch.Tensor
        """
        anything: Any = torch
        if anything._C._current_graph_task_id() >= 0:
            node = anything._C._current_autograd_node()
            number = MAX_NODE_NUMBER if node is None else node._sequence_nr()
            number = number if 0 <= number < MAX_NODE_NUMBER else ACCUMULATES
            return Origin(number, True, parameters=self._parameters(tensors))
        if self._recorder.phase != Phase.FORWARD:
            return Origin()
        module = self._paths.setdefault(self._path, len(self._paths))
        if module == len(self._recorder.within):
            self._recorder.within.append(self._path)
        number = anything.autograd._get_sequence_nr()
        return Origin(number, False, module, self._parameters(tensors))

    def _parameters(self, tensors: Iterable[Any]) -> tuple[int, ...]:
        """Return the numbers of the parameters whose storages some tensors have."""
        found: set[int] = set()
        for each in tensors:
            if each in self._numbers:
                found.add(self._numbers[each])
            elif has_storage(each):
                held = self._of_storage.get(each.untyped_storage()._cdata, ())
                found.update(held if len(held) == 1 else ())
        return tuple(sorted(found))
