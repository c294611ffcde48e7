"""Parameters without memory → those of a program: their class, and what is noted at them.

A program may have parameters of a class of its own, with methods and attributes. Of a tensor
without memory `torch.nn.Parameter` makes none, since that has a class already: it then gets one
that has both for bases.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .dispatch import is_fake
from .storages import swap

__all__ = ["install"]


def install() -> None:
    """PyTorch's makers and movers of parameters → stand-ins that keep classes and notes."""
    _install_classes()
    _install_conversions()


def _install_classes() -> None:
    """Have parameters keep the class that a program gives them."""
    anything: Any = torch.nn.Parameter
    original = anything.__new__

    def make(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if _made_of(data) is not None:
            data = data.detach()  # which leaves the class behind
        made = original(cls, data, requires_grad)
        _become(made, cls)
        return made

    anything.__new__ = make


def _become(parameter: Any, kind: type) -> None:
    """Tensor without memory, class → the tensor, of that class if it is a program's own.

    Parameters
    ----------
    parameter : torch.Tensor
    kind : type
        What the program has made it of.
    """
    is_own = issubclass(kind, torch.nn.Parameter) and not kind.__module__.startswith("torch.")
    if is_own and type(parameter) is FakeTensor:
        parameter.__class__ = _both(kind)


@cache
def _both(kind: type) -> type:
    """Subclass of torch.nn.Parameter → the same class, for fake tensors without memory."""
    own: Any = kind
    makers = {"__new__": FakeTensor.__new__, "__init__": own.__init__, "made_of": kind}
    return type(kind.__name__, (FakeTensor, kind), makers)


def _made_of(value: Any) -> type | None:
    """Return the class of a program that a parameter without memory has; None: it has none."""
    found: type | None = getattr(type(value), "made_of", None)
    return found if isinstance(value, FakeTensor) else None


def _install_conversions() -> None:
    """Have parameters keep what a program has noted at them where a module is moved or converted.

    With memory they stay the same objects, which get other data. Without, theirs is swapped
    (``torch.utils.swap_tensors``), and what autograd calls stays with the data: of a weight that
    two modules share and that is moved twice, the hooks would be lost. A small parameter, which has
    memory on the CPU, gets a new object on the device; it is swapped, too, since an optimizer may
    have been made before.
    """
    anything: Any = torch.nn.Module
    original = anything._apply
    hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")

    def convert(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = {name: each for name, each in self._parameters.items() if each is not None}
        noted = {name: dict(vars(each)) for name, each in before.items()}
        called = {name: [getattr(each, kind) for kind in hooks] for name, each in before.items()}
        kinds = {name: _made_of(each) or type(each) for name, each in before.items()}
        out = original(self, *args, **kwargs)
        for name, each in before.items():
            now = self._parameters[name]
            if now is not each and is_fake(now):
                swap(each, now)
                self._parameters[name] = each
            _become(self._parameters[name], kinds[name])
            for kind, old in zip(hooks, called[name], strict=True):
                found = getattr(each, kind) or old
                if found is not None:
                    setattr(self._parameters[name], kind, found)
        for name, attributes in noted.items():
            own = vars(self._parameters[name])
            own.update({key: attributes[key] for key in attributes.keys() - own.keys()})
        return out

    anything._apply = convert
