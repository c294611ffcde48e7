"""Experiment → `PreparedExperiment`: its hardware, memory, network and program, ready to be run.

`prepare` does so in this order: GPUs and cluster (`hardware`), ranks and layers (`lay_out`),
whether they fit into memory (`memory_fit`), the network with its step constants (`network`,
`calibrated`), kernel models and the program (`training_step`), and how its ranks differ
(`variation`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..base.errors import InputError
from ..base.frozen import frozen
from ..base.quantity import picoseconds
from ..experiment import Experiment, KernelChoice
from ..experiment.serialization import PACKAGED_CONSTANTS
from ..kernels import Gpu, KernelModel, Roofline
from ..kernels.operations import Precision
from ..kernels.scaled import rated_gpu
from ..memory import Evaluate, Verdict
from ..program import Program
from ..topo import Cluster, Network
from ..workloads import Workload, lay_out, training_step
from ..workloads.host import Host, host_of
from ..workloads.input_pipeline import InputPipeline, input_pipeline
from .calibrated import CalibratedKernels, CalibratedNetwork
from .hardware import Hardware, gpu_kinds, hardware_of, with_convolutions
from .memory_fit import advice_for, assess_layout
from .network import NetworkCache
from .step_constants import AppliedConstants, StepConstants, gpu_key, packaged_constants
from .variation import SlowestKernels, with_changed_variation, with_variation

if TYPE_CHECKING:
    from ..kernels.analytical import KernelCalibration

__all__ = ["PreparedExperiment", "kernel_models", "prepare", "with_step_constants"]


@frozen
class PreparedExperiment:
    """An experiment ready to be run: with its hardware, memory verdict, network and program.

    Attributes
    ----------
    experiment : Experiment
    cluster : Cluster
    gpu : Gpu
    workload : Workload
    network : Network
        Prices the communications, to which the program gives no duration.
    memory : Verdict
        Whether the plan fits into memory.
    evaluate : callable, optional
        The verdict on other plans, see `mpisim.memory.evaluator`; for one that does not fit.
    constants : AppliedConstants, optional
        Step constants of the first kind of GPU, if the experiment uses any.
    notes : tuple of str
        What else is assumed of it; lines for people.
    networks : NetworkCache
        For preparing the same experiment with other keys.
    """

    experiment: Experiment
    cluster: Cluster
    gpu: Gpu
    workload: Workload
    network: Network
    memory: Verdict
    evaluate: Evaluate | None = None
    constants: AppliedConstants | None = None
    notes: tuple[str, ...] = ()
    networks: NetworkCache = field(default_factory=NetworkCache, compare=False, repr=False)

    @cached_property
    def advice(self) -> tuple[str, ...]:
        """Changes that would make the plan fit into memory, as lines; none if it fits.

        Computed on demand: it lays out many other plans, which a sweep over plans does not need.
        """
        return advice_for(self.experiment, self.memory, self.evaluate)

    @property
    def program(self) -> Program:
        """The program: every rank's rows and communicators."""
        return self.workload.program

    @property
    def format(self) -> Precision:
        """Number format of the matrix products that take most of the time."""
        plan = self.experiment.plan
        return plan.precision.convolutions or plan.precision.products

    @cached_property
    def input_pipeline(self) -> InputPipeline | None:
        """The host's preparation of images; None if it costs no time."""
        grid = self.workload.layout.grid
        return input_pipeline(self.experiment, grid.world // grid.pp)

    @cached_property
    def host(self) -> Host:
        """The host of the GPUs, whose memory holds offloaded states and activations."""
        return host_of(self.experiment, self.workload.layout.grid.world)

    @property
    def peak(self) -> float:
        """Dense peak of all GPUs together in the `format` of their products, in FLOP/s."""
        layout, precision = self.workload.layout, self.format
        peaks = [each.model.gpu.peak(precision).si for each in self.workload.pricings]
        kinds = np.zeros(layout.grid.world, int) if layout.gpu_of is None else layout.gpu_of
        return float(np.array(peaks)[kinds].sum())

    def sample(self, number: int) -> PreparedExperiment:
        """Return the same with other random factors: those of the seed plus `number`."""
        choice = self.experiment.variation
        program = with_changed_variation(self.program, choice, choice, number)
        return replace(self, workload=replace(self.workload, program=program))

    def with_micro_batches(self, number: int) -> PreparedExperiment:
        """Return the same with another number of micro-batches a replica; memory goes unchecked.

        Raises
        ------
        InputError
            If the schedule cannot work with the number.
        """
        workload = self.workload.with_micro_batches(number)
        experiment = workload.layout.experiment
        workload = _with_overhead(_with_variation_of(workload, experiment), self.constants)
        return replace(self, experiment=experiment, workload=workload)


def prepare(
    experiment: Experiment,
    constants: StepConstants | None = None,
    memory: Verdict | None = None,
    networks: NetworkCache | None = None,
    micro_batches: int | None = None,
) -> PreparedExperiment:
    """Experiment → `PreparedExperiment`: hardware looked up, program generated. Local.

    Parameters
    ----------
    experiment : Experiment
    constants : StepConstants, optional
        Fitted to steps, in place of the experiment's ``[calibration] file``.
    memory : Verdict, optional
        Whether it fits, where that is known; nothing is refused then.
    networks : NetworkCache, optional
        Shared by the experiments that one caller prepares; they are faster then.
    micro_batches : int, optional
        Generate the program of a step with so many in each replica, in place of all.

    Raises
    ------
    InputError
        If hardware is unknown, model, plan and cluster do not go together, or the plan does not fit
        into memory (and ``run.allow_oom`` is not set).
    """
    networks = networks or NetworkCache()
    try:
        choice = experiment.cluster
        hardware = hardware_of(experiment)
        experiment = with_convolutions(experiment, hardware.named)
        cluster, named = hardware.cluster, hardware.named
        gpu = next(iter(named.values()))
        layout = lay_out(experiment, hardware.gpus, gpu_kinds(choice, cluster, named))
        evaluate = None
        if memory is None:
            memory, evaluate = assess_layout(layout, hardware)
        folder = Path(experiment.source).parent
        network = networks.network_of(cluster, choice.nodes, experiment.network, folder)
        models, applied = kernel_models(experiment, hardware, constants)
        if applied is not None:
            network = with_step_constants(network, applied)
        if micro_batches is not None:
            layout = layout.with_micro_batches(micro_batches)
        workload = _with_variation_of(training_step(layout, *models), experiment)
        workload = _with_overhead(workload, applied)
        return PreparedExperiment(
            experiment,
            cluster,
            gpu,
            workload,
            network,
            memory,
            evaluate,
            applied,
            networks=networks,
        )
    except InputError as error:
        raise InputError(f"{experiment.source}: {error}") from error


def _with_variation_of(workload: Workload, experiment: Experiment) -> Workload:
    return replace(workload, program=with_variation(workload.program, experiment.variation))


def with_step_constants(network: Network, constants: AppliedConstants | None) -> Network:
    """Network, step constants → network with calibrated prices; unchanged without constants.

    Parameters
    ----------
    network : Network
    constants : AppliedConstants, optional
        If None, `network` is returned as it is.

    Raises
    ------
    InputError
        If it is none of NCCL's model, which the constants are of.
    """
    from ..topo.nccl_network import NcclNetwork

    if constants is None:
        return network
    if not isinstance(network, NcclNetwork):
        raise InputError(
            "calibration.file is given; network.model = 'alpha-beta' has no use for it"
        )
    return network if network.nccl is None else CalibratedNetwork(network, constants)


def _with_overhead(workload: Workload, constants: AppliedConstants | None) -> Workload:
    """Return a workload whose ranks start after the overhead of a step."""
    late = 0 if constants is None else picoseconds(constants.overhead[1])
    if not late:
        return workload
    program = workload.program.replace(start=workload.program.start + late)
    return replace(workload, program=program)


def kernel_models(
    experiment: Experiment, hardware: Hardware, constants: StepConstants | None = None
) -> tuple[list[KernelModel], AppliedConstants | None]:
    """Experiment → the kernel model of each kind of GPU, and the step constants in them. Local.

    Parameters
    ----------
    experiment : Experiment
    hardware : Hardware
        Of the experiment.
    constants : StepConstants, optional
        As for `prepare`.

    Returns
    -------
    models : list of KernelModel
        By the order of `Hardware.named`.
    applied : AppliedConstants or None
        Of the first kind of GPU, if the experiment uses any.

    Raises
    ------
    InputError
        If a file of the experiment cannot be used.
    """
    folder = Path(experiment.source).parent
    file = experiment.calibration.file
    if constants is None and file is not None:
        constants = (
            packaged_constants()
            if file == PACKAGED_CONSTANTS
            else StepConstants.read(folder / file)
        )
    make, factors = _model_maker(experiment), experiment.scale.changes
    models = [make(rated_gpu(gpu)).scaled(factors) for gpu in hardware.named.values()]
    if experiment.variation.waits_for_slowest:
        models = [SlowestKernels(model, hardware.gpus) for model in models]
    if constants is None:
        return models, None
    constants = constants.for_model(experiment.model)
    platform = hardware.cluster.nccl.platform or Path(experiment.cluster.preset).stem
    framework = experiment.software
    of_gpus = [
        AppliedConstants(constants, gpu_key(name, experiment.model), platform, framework)
        for name in hardware.named
    ]
    return list(map(CalibratedKernels, models, of_gpus)), of_gpus[0]


def _model_maker(experiment: Experiment) -> Callable[[Gpu], KernelModel]:
    """Experiment → function from a GPU to the kernel model that the experiment chooses."""
    choice = experiment.kernels
    folder = Path(experiment.source).parent
    if choice.model == "roofline":
        if choice.calibration is not None:
            raise InputError("kernels.calibration is given; kernels.model = 'roofline' has none")
        return Roofline
    from ..kernels.analytical import Analytical, KernelCalibration, analytical_model

    calibration = None
    if choice.calibration is not None:
        calibration = KernelCalibration.read(folder / choice.calibration)
    if choice.model != "analytical":
        return _learned_models(choice, folder, calibration)
    if calibration is None:
        return analytical_model
    return partial(Analytical, calibration=calibration)


def _learned_models(
    choice: KernelChoice, folder: Path, calibration: KernelCalibration | None
) -> Callable[[Gpu], KernelModel]:
    """Measured kernels of the experiment → function from a GPU to its learned kernel model."""
    from ..kernels.alternatives import learned_models
    from ..kernels.measured import TEST, TRAIN, read, select

    tables = [read(folder / file) for file in choice.measurements]
    rows = select([rows for found, _ in tables for rows in found], splits=(TRAIN, TEST))
    if not rows:
        reasons = [reason for _, skipped in tables for reason in skipped]
        why = f": {'; '.join(reasons)}" if reasons else ""
        raise InputError(f"kernels.measurements has no row that can be used{why}")
    return learned_models(choice.model, rows, calibration)
