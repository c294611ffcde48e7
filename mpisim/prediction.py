"""From an experiment to a run and back: the program to simulate, and what to say of the answer.

`prepare` is what is known before the run. `statements` is what a prediction must say of itself
afterwards: its error bar and where it comes from, what was assumed, what was left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .calibrated import CalibratedKernels, CalibratedNetwork
from .engine.run import Run
from .errors import InputError
from .experiment import Cnn, Dlrm, Experiment, Plan, Transformer
from .fitting import advice_for, assessed
from .hardware import differences, hardware_of, kinds_of, left_out
from .kernels import Gpu, KernelModel, Roofline
from .memory import Evaluate, Verdict
from .network import network_of
from .path_shares import PathShares
from .program import Program
from .quantity import PICOSECONDS, Quantity, picoseconds
from .slowest import SlowestKernels
from .step_constants import Known, StepConstants, ours, served, sort_of
from .topo import Cluster, Network
from .uncertainty import Uncertainty, combine
from .variation import varied
from .workloads import Workload, lay_out, training_step

if TYPE_CHECKING:
    from .overlap import Overlap

__all__ = ["Case", "PathShares", "error_bar", "prepare", "statements"]

OVERLAP = "the slowdown of kernels and communications that overlap"

LEFT_OUT = (
    OVERLAP,
    "clocks that fall while kernels run back to back, but for products, attention, convolutions",
    "packets: communications that share a link share its bandwidth fairly and at once",
    "input pipeline, checkpoints",
)

OURS = "ours"
"""In place of a file of constants: the one that comes with mpisim."""

WORTH_SAYING = 0.0005
"""Relative effects on the step time below this are not listed one by one."""


@dataclass(frozen=True)
class Case:
    """An experiment, ready to be simulated.

    Attributes
    ----------
    experiment : Experiment
    cluster : Cluster
    gpu : Gpu
    workload : Workload
    network : Network
        Of the communications, which the program leaves unpriced.
    memory : Verdict
        Whether it fits.
    evaluate : callable, optional
        The verdict on other plans, see `mpisim.memory.evaluator`; for one that does not fit.
    constants : Known, optional
        Those fitted to measured steps, if the experiment uses any.
    """

    experiment: Experiment
    cluster: Cluster
    gpu: Gpu
    workload: Workload
    network: Network
    memory: Verdict
    evaluate: Evaluate | None = None
    constants: Known | None = None

    @cached_property
    def advice(self) -> tuple[str, ...]:
        """What would make it fit, if it does not; lines for people.

        It takes laying out many other plans, which a sweep over plans has no use for.
        """
        return advice_for(self.experiment, self.memory, self.evaluate)

    @property
    def program(self) -> Program:
        """What every rank does."""
        return self.workload.program

    @property
    def peak(self) -> float:
        """Dense peak of all GPUs together, in FLOP/s."""
        layout, precision = self.workload.layout, self.experiment.plan.precision
        peaks = [each.model.gpu.peak(precision).si for each in self.workload.pricings]
        kinds = np.zeros(layout.grid.world, int) if layout.gpu_of is None else layout.gpu_of
        return float(np.array(peaks)[kinds].sum())

    def sample(self, number: int) -> Case:
        """Return the case with other random factors: those of the seed plus `number`."""
        choice = self.experiment.variation
        alike = self.program.replace(speed=np.ones(self.program.n_ranks))
        return replace(self, workload=replace(self.workload, program=varied(alike, choice, number)))

    def with_micro_batches(self, number: int) -> Case:
        """Return the case with so many micro-batches a replica; whether it fits is not asked again.

        Raises
        ------
        InputError
            If the schedule cannot work with the number.
        """
        workload = self.workload.with_micro_batches(number)
        experiment = workload.layout.experiment
        workload = _started(_varied(workload, experiment), self.constants)
        return replace(self, experiment=experiment, workload=workload)


def prepare(
    experiment: Experiment, constants: StepConstants | None = None, memory: Verdict | None = None
) -> Case:
    """Look up the hardware of an experiment and generate its program. Local.

    Parameters
    ----------
    experiment : Experiment
    constants : StepConstants, optional
        Fitted to steps, in place of the experiment's ``[calibration] file``.
    memory : Verdict, optional
        Whether it fits, where that is known; nothing is refused then.

    Raises
    ------
    InputError
        If hardware is unknown, model, plan and cluster do not go together, or the plan does not fit
        into memory (and ``run.allow_oom`` is not set).
    """
    try:
        choice = experiment.cluster
        hardware = hardware_of(experiment)
        cluster, named = hardware.cluster, hardware.named
        gpu = next(iter(named.values()))
        layout = lay_out(experiment, hardware.gpus, kinds_of(choice, cluster, named))
        evaluate = None
        if memory is None:
            memory, evaluate = assessed(layout, hardware)
        folder = Path(experiment.source).parent
        file = experiment.calibration.file
        if constants is None and file is not None:
            constants = ours() if file == OURS else StepConstants.read(folder / file)
        network = network_of(cluster, choice.nodes, experiment.network, folder)
        if constants is None:
            models = [_kernel_model(experiment, each, hardware.gpus) for each in named.values()]
            workload = _varied(training_step(layout, *models), experiment)
            return Case(experiment, cluster, gpu, workload, network, memory, evaluate)
        platform = cluster.nccl.platform or Path(choice.preset).stem
        framework = experiment.calibration.framework
        knowns = [
            Known(constants, served(name, experiment.model), platform, framework)
            for name in named
        ]
        calibrated = [
            CalibratedKernels(_kernel_model(experiment, each, hardware.gpus), known)
            for each, known in zip(named.values(), knowns, strict=True)
        ]
        workload = _varied(training_step(layout, *calibrated), experiment)
        return _calibrated(
            Case(experiment, cluster, gpu, workload, network, memory, evaluate, knowns[0])
        )
    except InputError as error:
        raise InputError(f"{experiment.source}: {error}") from error


def _varied(workload: Workload, experiment: Experiment) -> Workload:
    return replace(workload, program=varied(workload.program, experiment.variation))


def _calibrated(case: Case) -> Case:
    """Return a case whose communications and starts have the constants fitted to steps, too."""
    from .topo.nccl_network import NcclNetwork

    assert case.constants is not None
    if not isinstance(case.network, NcclNetwork):
        raise InputError(
            "calibration.file is given; network.model = 'alpha-beta' has no use for it"
        )
    network = CalibratedNetwork(case.network, case.constants)
    return replace(case, workload=_started(case.workload, case.constants), network=network)


def _started(workload: Workload, constants: Known | None) -> Workload:
    """Return a workload that starts as late as constants say."""
    late = 0 if constants is None else picoseconds(constants.overhead[1])
    if not late:
        return workload
    program = workload.program.replace(start=workload.program.start + late)
    return replace(workload, program=program)


def _kernel_model(experiment: Experiment, gpu: Gpu, gpus: int) -> KernelModel:
    model = _kernels_of(experiment, gpu)
    return SlowestKernels(model, gpus) if experiment.variation.waits_for_slowest else model


def _kernels_of(experiment: Experiment, gpu: Gpu) -> KernelModel:
    choice = experiment.kernels
    if choice.model == "roofline":
        if choice.calibration is not None:
            raise InputError("kernels.calibration is given; kernels.model = 'roofline' has none")
        return Roofline(gpu)
    from .kernels.analytical import Analytical, Calibration, shared

    if choice.calibration is None:
        return shared(gpu)
    return Analytical(gpu, Calibration.read(Path(experiment.source).parent / choice.calibration))


def statements(
    case: Case, run: Run, defaults: Mapping[str, object], overlap: Overlap | None = None
) -> dict[str, Any]:
    """Return what a prediction says of itself, as attributes of its results. Local.

    Parameters
    ----------
    case : Case
    run : Run
        With its critical path.
    defaults : mapping of str to value
        Keys the experiment did not give, with the values taken instead.
    overlap : Overlap, optional
        What slowed what overlaps, if that was modelled.

    Returns
    -------
    dict
        ``throughput`` (for people), ``tokens`` and ``model_flops`` (of the step), ``utilisation``
        (of the GPUs' dense peak), ``uncertainty`` (relative, one standard deviation),
        ``uncertainty_method``, as lists of texts ``uncertainty_sources``, ``assumptions``,
        ``not_modelled`` and ``memory`` (a table), and ``memory_peak`` and ``memory_capacity`` in
        bytes; and what `Overlap.statements` says.
    """
    found = error_bar(case, run, overlap=overlap)
    seconds = run.step_time / PICOSECONDS
    work, plan = case.workload, case.experiment.plan
    peak = case.peak / work.layout.grid.world
    a_gpu = work.flops / seconds / work.layout.grid.world
    samples = plan.global_batch / seconds
    rate = f"{samples:,.4g} {case.experiment.model.samples}/s"
    if work.tokens != plan.global_batch:
        rate = f"{work.tokens / seconds:,.0f} tokens/s ({rate})"
    return {
        "throughput": (
            f"{rate}, {a_gpu / 1e12:.0f} TFLOP/s a GPU, {a_gpu / peak:.1%} of its dense "
            f"{plan.precision} peak"
        ),
        "tokens": work.tokens,
        "model_flops": float(work.flops),
        "executed_flops": float(work.executed_flops),
        "utilisation": a_gpu / peak,
        "uncertainty": found.relative,
        "uncertainty_method": (
            "one standard deviation, first order along the critical path, inputs independent of "
            "each other (error bars and sources: mpisim/data); model error: what steps have shown "
            "that were not fitted"
        ),
        "uncertainty_sources": [
            f"{each.name} ±{each.error:.0%} on {each.share:.1%} of the step: ±{each.effect:.1%}"
            for each in found.effects
            if each.effect >= WORTH_SAYING
        ],
        "assumptions": [
            case.cluster.title,
            case.gpu.title,
            *_assumed(plan),
            *differences(case),
            *(
                f"{key} = {_toml(value)} (default)"
                for key, value in defaults.items()
                if _matters(key, value, case.experiment)
            ),
        ],
        "not_modelled": [
            *(each for each in LEFT_OUT if overlap is None or each != OVERLAP),
            *left_out(case),
        ],
        "memory": [*case.memory.text().splitlines(), *case.advice],
        "memory_peak": case.memory.peak,
        "memory_capacity": case.memory.capacity,
        **({} if overlap is None else overlap.statements()),
    }


def error_bar(
    case: Case, run: Run, lengths: Mapping[str, float] | None = None, *,
    model_error: bool = True, overlap: Overlap | None = None,
) -> Uncertainty:  # fmt: skip
    """Return the error bar of a step time, and what it consists of. Local.

    Parameters
    ----------
    case : Case
    run : Run
        With its critical path.
    lengths : mapping of str to float, optional
        `PathShares.lengths`, if known.
    model_error : bool
        Whether it holds what the model leaves out.
    overlap : Overlap, optional
        What slowed what overlaps, if that was modelled.
    """
    numbers = {
        name: number
        for name, number in vars(case.gpu).items()
        if isinstance(number, Quantity)
    }
    numbers |= dict(case.network.numbers)
    for pricing in reversed(case.workload.pricings):  # of equal names those of most nodes count
        numbers |= dict(pricing.model.numbers)
    if lengths is None:
        lengths = PathShares(case, run).lengths()
    if overlap is not None and run.critical_path is not None:
        numbers |= overlap.numbers
        lengths = {**lengths, **overlap.lengths(run.critical_path)}
    left_out = _model_error(case) if model_error else None
    return combine(lengths, run.step_time, numbers, left_out)


def _model_error(case: Case) -> tuple[str, Quantity] | None:
    """Return the name and the size of what the model leaves out."""
    known, sort = case.constants, sort_of(case.experiment.model)
    if known is None:
        found = ours().model_error
        return None if found is None else ("model error", found.plain[sort])
    found = known.constants.model_error
    if found is None:
        return None
    if known.constants.knows(known.framework, known.gpu):
        return "model error (calibrated)", found.known[sort]
    return "model error (calibrated; framework or GPU new)", found.unknown[sort]


def _assumed(plan: Plan) -> list[str]:
    """What the plan's keys, given or not, stand for."""
    return [
        f"{plan.precision} matrix products, {'fused' if plan.kernels == 'flash' else 'unfused'} "
        f"attention, {'fused' if plan.fused else 'elementary'} elementwise kernels",
        "kernels one after another on one stream; each kind of communicator on a stream of its own",
    ]


def _matters(key: str, value: object, experiment: Experiment) -> bool:
    """Whether a default is worth saying: it does something, and can have changed the answer."""
    if value is not True and value in (None, False, 0, 1, (), {}):
        return False
    plan, model = experiment.plan, experiment.model
    transformer, images = isinstance(model, Transformer), isinstance(model, Cnn)
    mixture = isinstance(model, Transformer) and model.experts > 0
    conditions = {
        "plan.order": sum(size > 1 for size in (plan.tp, plan.cp, plan.ep, plan.pp)) > 0,
        "plan.schedule": plan.pp > 1,
        "plan.cp_style": plan.cp > 1,
        "plan.tp_overlap_scatter": plan.tp_overlap,
        "plan.dgrad_overlap": plan.tp > 1 and not plan.sequence_parallel,
        "plan.broadcast_buffers": images and plan.style(transformer=transformer) == "ddp",
        "plan.kernels": transformer,
        "plan.attention": transformer and plan.kernels == "flash",
        "plan.unaligned": transformer and plan.kernels == "eager",
        "plan.scores_softmax": transformer and plan.kernels == "eager" and plan.fused,
        "plan.norm_fusion": images,
        "plan.image_layout": images,
        "plan.moe_imbalance": mixture,
        "plan.moe_dispatcher": mixture and plan.ep > 1,
        "plan.dispatch_precision": mixture and plan.ep > 1,
        "plan.reshard_after_forward": plan.zero == 3,
        "plan.wrap_layers": plan.zero == 3,
        "plan.prefetch": plan.zero == 3,
        "plan.sharder": isinstance(model, Dlrm),
        "overlap.passes": experiment.overlap.model == "coupled",
    }
    return conditions.get(key, True)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
