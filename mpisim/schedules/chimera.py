"""Order of Chimera, two pipelines in opposite directions: every part of the model is held twice.

Chunk 0 takes the first half of the micro-batches from the first stage to the last, chunk 1 the
second half from the last to the first.
"""

from __future__ import annotations

from ..base.errors import InputError
from ..program import Phase
from .actions import Action, Order, PipelineSize

__all__ = ["check_chimera", "chimera"]


def check_chimera(size: PipelineSize) -> None:
    """Refuse sizes that Chimera cannot work with."""
    for key, value in (("stages", size.stages), ("micro_batches", size.micro_batches)):
        if value % 2:
            raise InputError(f"schedule chimera: {key} is {value}; it must be even")


def chimera(size: PipelineSize) -> tuple[Order, ...]:
    """Size → order of each stage: two pipelines of one forward, one backward, that fill each other.

    Chimera (arXiv:2107.06925, section 3.1), as in ``MyPipeLine`` of Shigangli/Chimera
    (chimera_pipeline_rank.py). A unit is as many micro-batches as there are stages, half of them
    in either direction. In time slots of one pass each, a direction starts a micro-batch every
    other slot, which then goes through all stages and back without a stop: so no two passes of a
    stage fall into one slot. Units follow each other after as many slots as they have work for a
    stage (section 3.5, direct concatenation), so that the next one's forwards fill the gaps
    between the last backwards of the one before. The last unit may be shorter.
    """
    stages = size.stages
    half, of_unit = size.micro_batches // 2, stages // 2
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(stages)]
    for i in range(half):
        unit, place = divmod(i, of_unit)
        start = 2 * stages * unit + 2 * place
        for chunk in range(2):
            forward = Action(Phase.FORWARD, chunk, i + chunk * half)
            backward = Action(Phase.BACKWARD, chunk, i + chunk * half)
            for part in range(stages):
                stage = part if chunk == 0 else stages - 1 - part
                slots[stage].append((start + part, forward))
                slots[stage].append((start + 2 * stages - 1 - part, backward))
    return tuple(tuple(each for _, each in sorted(own, key=lambda pair: pair[0])) for own in slots)
