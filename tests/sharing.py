"""What a rank of a toy network does, in words, for tests of data parallelism."""

from __future__ import annotations

from toys import Times, layout

from mpisim.kernels.operations import Elementwise
from mpisim.program import Kind, Program, check_matching
from mpisim.workloads import Workload, training_step
from mpisim.workloads.operators import Compute, Layer, LayerStack, Operator, Parameter

ROLES = {"e": "embedding", "h": "head"}


def layer(name: str, *parameters: Parameter | int) -> Layer:
    """A layer with one operator for each parameter; the name's first letter tells its role."""
    operators = []
    for i, parameter in enumerate(parameters):
        called = name if len(parameters) == 1 else f"{name}{i}"
        if isinstance(parameter, int):
            parameter = Parameter(f"{called} weight", parameter)
        operators.append(
            Operator(
                called,
                forward=(Compute(f"{called} forward", Elementwise(10)),),
                backward=(Compute(f"{called} backward", Elementwise(20)),),
                parameters=(parameter,),
            )
        )
    role = ROLES.get(name[0], "block")
    return Layer(name, tuple(operators), role, output=16, checkpoint=8)  # type: ignore[arg-type]


def stepped(layers: tuple[Layer, ...], gpus: int, **plan: object) -> Workload:
    """The step of a network of these layers."""
    laid = layout(LayerStack(layers, 6, 1), gpus, **{"global_batch": gpus, **plan})
    done = training_step(laid, Times())
    check_matching(done.program)
    return done


def told(program: Program, rank: int = 0) -> list[str]:
    """Each row of a rank: its name, of collectives group and bytes, and what it waits for.

    Of the waits of kernels only those for communications are told. A wait for a kernel is told as
    its name.
    """
    table = program.table_of(rank)
    names = [program.names[name] for name in table.name]
    found = []
    for row, name in enumerate(names):
        awaited = table.wait_row[table.wait_index[row] : table.wait_index[row + 1]].tolist()
        text = name
        if table.kind[row] == Kind.COLLECTIVE:
            group = program.slots[program.slot_index[rank] + table.slot[row]]
            label = program.communicators.names[group].partition(" ")[0]
            text += f" [{label} {table.bytes[row]}]"
        elif table.kind[row] != Kind.HOST_WAIT:
            awaited = [each for each in awaited if table.kind[each] == Kind.COLLECTIVE]
        if awaited:
            text += " < " + ", ".join(f"{names[each]}" for each in awaited)
        found.append(text)
    return found
