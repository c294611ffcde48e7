"""Stages of ``torch.distributed.pipelining`` → shapes of what they send, if no examples are given.

Stages that `pipeline` has cut are moved to the device although their parameters are fake tensors.
Stages that were given no examples of their inputs and outputs run once, in order, and tell the next
the shapes of what they give, and the one before those of the gradients. Other ranks are not there
to tell. Each stage is taken to give what the first one does, which rank 0 finds, and a gradient to
have the shape of what it is of. A stage that gives something else is refused.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from ..base.errors import InputError
from ..operators import TensorSpec
from .recorder import Recorder
from .recording import StageOutputs
from .stand_ins.after_import import AfterImport

__all__ = ["install"]


def install(recorder: Recorder, received: StageOutputs) -> None:
    """Put stand-ins in the place of what stages tell each other, once they are imported.

    Parameters
    ----------
    recorder : Recorder
        Gets what the first stage gives.
    received : tuple of (TensorSpec, bool)
        What it gives, as rank 0 found.
    """

    def moved(stage: Any) -> None:
        if not any(each.is_meta for each in stage.submod.parameters()):
            stage.submod.to(stage.device)

    def of_stages(module: Any) -> None:
        cut: Any = getattr(module, "_PipelineStage", None)
        if hasattr(cut, "_move_submod_to_device"):  # which leaves fake tensors where they are
            cut._move_submod_to_device = moved
        stage: Any = getattr(module, "PipelineStage", None)
        if not hasattr(stage, "_recv_meta"):  # a version that asks in another way
            return
        shapes = _Shapes(recorder, received)
        stage._send_meta, stage._recv_meta = shapes.send, shapes.receive

    def of_schedules(module: Any) -> None:
        base: Any = getattr(module, "_PipelineSchedule", None)
        if hasattr(base, "_warmup_p2p") and hasattr(module, "InferenceMode"):
            base._warmup_p2p = _without_votes(base._warmup_p2p, module)

    changes = {"stage": of_stages, "schedules": of_schedules}
    for name, change in changes.items():
        sys.meta_path.insert(0, AfterImport(f"torch.distributed.pipelining.{name}", change))


def _without_votes(original: Any, module: Any) -> Any:
    """Decide here whether stages run once for their shapes, on which all ranks vote."""

    def warm_up(self: Any, stages: Any, has_backward: bool, p2p_done: bool) -> None:
        mode = module.InferenceMode
        if not all(isinstance(each, module.PipelineStage) for each in stages):
            original(self, stages, has_backward, p2p_done)
            return
        asks = any(mode.needs_dynamic(each._user_meta, has_backward) for each in stages)
        for each in stages:
            each._inference_mode = mode.DYNAMIC if asks else mode.STATIC

    return warm_up


class _Shapes:
    """What stages of a rank tell those of other ranks, and are told."""

    def __init__(self, recorder: Recorder, received: StageOutputs) -> None:
        self._recorder, self._received = recorder, received
        self.send, self.receive = self._functions()

    def _functions(self) -> tuple[Any, Any]:
        """Return the two as functions, which become methods of the stages."""

        def send(stage: Any, meta: Any, to: int) -> None:
            if to > stage.stage_index:
                self._given(stage.stage_index, meta.forward_metas)

        def receive(stage: Any, source: int) -> Any:
            from torch.distributed.pipelining import _utils

            if source > stage.stage_index:
                gradients = _utils._derive_grad_metas(stage._stage_meta.outputs)
                return _utils._StageBackwardMeta(gradients)
            if not self._received:
                raise InputError(
                    f"{self._recorder.user_line()}: stage {stage.stage_index} of the pipeline is "
                    "to be told the shapes of its inputs by the one before, and rank 0 has not "
                    "run the first without examples; give each stage input_args and output_args"
                )
            self._recorder.replaced[
                "torch.distributed.pipelining: each stage is taken to send what the first does"
            ] += 1
            return _utils._StageForwardMeta(
                tuple(
                    _utils._TensorMeta(
                        shape=torch.Size(spec.shape),
                        stride=spec.strides,
                        dtype=getattr(torch, spec.dtype),
                        requires_grad=has_gradient,
                    )
                    for spec, has_gradient in self._received
                )
            )

        return send, receive

    def _given(self, stage: int, metas: Any) -> None:
        """Keep what the first stage gives, and compare what others give with it."""
        found = tuple(
            (
                TensorSpec(str(each.dtype)[6:], tuple(each.shape), tuple(each.stride)),
                bool(each.requires_grad),
            )
            for each in metas
        )
        if stage == 0:
            self._recorder.stage_outputs = found
            self._received = found
        elif found != self._received:
            raise InputError(
                f"{self._recorder.user_line()}: stage {stage} of the pipeline gives "
                f"{_text(found)}, and the first stage {_text(self._received)}, which each is taken "
                "to give; give each stage input_args and output_args"
            )


def _text(outputs: StageOutputs) -> str:
    words = (f"{spec.dtype} {'x'.join(map(str, spec.shape))}" for spec, _ in outputs)
    return ", ".join(words) or "nothing"
