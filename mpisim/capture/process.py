"""The process of one captured rank: stand-ins in place, then the user's script, then its recording.

It leaves a recording or the one line that says why there is none.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from ..base.errors import InputError, MpisimError
from ..base.kinds import Phase
from .device import Device
from .job import Job
from .recorder import Recorder
from .steps import Ended

__all__ = ["run_job"]

_PREFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.", "module.")


def run_job(job: Job) -> NoReturn:
    """Job → its recording, or its failure, as a file; ends the process."""
    code = 0
    try:
        capture_rank(job)
    except MpisimError as error:
        job.failure.write_text(str(error))
        code = 2
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # what the script left open has nothing to say


def capture_rank(job: Job) -> None:
    """Run the script of a job as one of its ranks, and save the recording."""
    recorder = Recorder(job.rank, job.world, job.steps, job.warm_up, job.values)
    os.environ |= job.environment()
    import torch

    dispatch = _install(recorder, job.device, job)
    sys.argv = [job.script, *job.arguments]
    sys.path.insert(0, "" if job.module else str(Path(job.script).resolve().parent))
    failure: MpisimError | None = None
    with dispatch:
        try:
            if job.module:
                runpy.run_module(job.script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(job.script, run_name="__main__")
        except Ended:
            pass
        except MpisimError as error:
            failure = error
        except SystemExit as ending:
            if ending.code not in (None, 0):
                failure = MpisimError(f"{_raised_in(job, ending)[0]}: {_said_at_the_end(ending)}")
        except BaseException as error:
            failure = _described(job, error, recorder.values.behind(error))
    if failure is not None:
        raise InputError(f"rank {job.rank}: {failure}")
    with contextlib.suppress(Ended):
        recorder.step_begins()
    if not recorder.steps.ends:
        passes = f"{recorder.backwards} backward passes" if recorder.backwards else "no backward"
        raise InputError(
            f"{job.script}: rank {job.rank} ended with {passes} and without a step of an optimizer "
            "(torch.optim.Optimizer): there is no training step to record"
        )
    if lacking := recorder.steps.missing():
        raise InputError(f"{job.script}: rank {job.rank} {lacking}")
    missing = [where for where in job.values if where not in recorder.values.used]
    if missing:
        asked = ", ".join(sorted({line.split(": ")[0] for line in recorder.values.taken})) or "none"
        raise InputError(f"--value {missing[0]}: no value is read there; places that read: {asked}")
    recorder.recording(str(torch.__version__)).save(job.recording)


def _said_at_the_end(ending: SystemExit) -> str:
    """What a script ended itself with → the words for it: its number, or its message."""
    if isinstance(ending.code, int):
        return f"ended with exit code {ending.code}"
    return f"ended by sys.exit: {' '.join(str(ending.code).split())[:500]}"


def _raised_in(job: Job, error: BaseException) -> tuple[str, str]:
    """Exception of the script → the script's line, and the library's that raised (or nothing)."""
    where, inside = job.script, ""
    folder, own = Path(job.script).resolve().parent, Path(__file__).parents[1]
    package = job.script.partition(".")[0] if job.module else None
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if frame.filename.startswith("<") or own in path.parents:
            continue  # <frozen runpy>, stand-ins
        installed = frame.filename.partition("site-packages/")[2]
        users = not installed and folder in path.resolve().parents
        if users or path.name == Path(job.script).name or package in path.with_suffix("").parts:
            where, inside = f"{path.name}:{frame.lineno}", ""
        elif installed:
            inside = f" (in {installed}:{frame.lineno})"
    return where, inside


def _described(job: Job, error: BaseException, value: str) -> MpisimError:
    """Exception of the script → error with the script's line, and the library's that raised.

    And with the value that it may come from.
    """
    where, inside = _raised_in(job, error)
    if job.show:
        traceback.print_exception(error)
    text = " ".join(str(error).split())
    cause = error.__cause__
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    if cause is not None and str(cause) not in str(error):  # a library says where, the first what
        why = " ".join(str(cause).split())
        text = f"{text[:250]}, since {type(cause).__name__}: {why}"
    return MpisimError(f"{where}: {type(error).__name__}: {text[:500]}{inside}{value}")


def _install(recorder: Recorder, device: Device, job: Job) -> Any:
    """Put all stand-ins in place, and return the mode that records operators."""
    import torch

    from .autograd import install_engine
    from .checkpoints import install as install_checkpoints
    from .compiled import install as install_compiler
    from .cuda import install as install_cuda
    from .data_parallel import DistributedDataParallel
    from .dispatch import Dispatch
    from .distributed import Collectives
    from .parameters import install as install_parameters
    from .pipelines import install as install_pipelines
    from .process_groups import install as install_process_groups
    from .recurrent import install as install_recurrent
    from .stand_ins.install import install as install_libraries
    from .storages import install as install_storages
    from .torch_modules import install as install_torch_modules
    from .triton_kernels import install as install_triton

    anything: Any = torch
    torch.autograd.set_multithreading_enabled(False)
    collectives = Collectives(recorder, job.received)
    dispatch = Dispatch(recorder, collectives)  # imports what looks at torch.cuda as it is
    collectives.values = dispatch.values
    install_engine(recorder)
    recorder.rates = device.rates
    install_cuda(recorder, device, job.local_rank, job.per_node)
    install_process_groups(collectives)
    _install_attention(recorder, dispatch)
    DistributedDataParallel._recorder = recorder
    anything.nn.parallel.DistributedDataParallel = DistributedDataParallel
    anything.nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel
    install_compiler(recorder, dispatch)
    _install_functions(recorder)
    _install_processes(recorder, job)
    _install_values(recorder, dispatch)
    _install_optimizers(dispatch)
    _install_hooks(recorder, dispatch)
    install_storages(recorder, dispatch)
    install_recurrent()
    install_checkpoints(recorder)
    install_triton(dispatch)
    install_pipelines(recorder, job.received.stage_outputs)
    _install_sharding(dispatch)
    install_parameters()
    install_torch_modules(dispatch)
    _install_jagged()
    folder = os.getcwd() if job.module else str(Path(job.script).resolve().parent)
    install_libraries(dispatch, job.without, folder)
    return dispatch


def _install_attention(recorder: Recorder, dispatch: Any) -> None:
    """Stand-ins of attention, whose kernel is chosen as on a GPU."""
    import torch
    from torch.nn.attention import flex_attention

    from .attention import attention
    from .flexible_attention import flexible

    def note(text: str) -> None:
        recorder.replaced[text] += 1

    noted: Any = note
    noted._dynamo_marked_constant = True  # else it is compiled again whenever the count differs
    anything: Any = torch
    anything.nn.functional.scaled_dot_product_attention = attention
    for name, stand in flexible(noted, dispatch.values).items():
        setattr(flex_attention, name, stand)


def _install_functions(recorder: Recorder) -> None:
    """Stand-ins of what draws numbers until they fit, or loads data in processes."""
    import torch
    import torch.utils.data

    anything: Any = torch

    def drawn(tensor: Any, mean: float, std: float, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return tensor.normal_(mean, std)

    anything.nn.init._no_grad_trunc_normal_ = drawn  # which draws again what is out of bounds

    def replicated(network: Any, devices: Any, detach: bool = False) -> Any:
        raise InputError(
            f"{recorder.user_line()}: torch.nn.DataParallel drives {len(devices)} GPUs from one "
            "process, and a capture has one GPU for each: use DistributedDataParallel and "
            "--world-size, or name one GPU (device_ids=[0])"
        )

    def without_fast_path() -> bool:
        """Say that there is none, to a layer that asks; one that might have taken it is noted."""
        asks = sys._getframe(1).f_locals.get("self")
        if not (torch.is_grad_enabled() or getattr(asks, "training", False)):
            recorder.replaced[
                "nn.TransformerEncoder and nn.MultiheadAttention in evaluation: by their "
                "operators, without PyTorch's fast path"
            ] += 1
        return False

    asked: Any = without_fast_path
    asked._dynamo_marked_constant = True  # else it is compiled again whenever the count differs
    # In evaluation PyTorch packs padded sequences of nn.TransformerEncoder, in C++.
    anything.backends.mha.get_fastpath_enabled = asked

    # The module that DataParallel calls has the name of its function.
    parallel: Any = sys.modules["torch.nn.parallel.data_parallel"]
    parallel.replicate = replicated

    ctc_loss = torch.ctc_loss

    def listed(scores: Any, targets: Any, *lengths: Any, **kwargs: Any) -> Any:
        """Give lengths on the CPU as numbers, as CTC's kernels for CUDA take them."""
        numbers = (
            each.tolist() if isinstance(each, torch.Tensor) and not each.is_cuda else each
            for each in lengths
        )  # fmt: skip
        return ctc_loss(scores, targets, *numbers, **kwargs)

    anything.ctc_loss = listed

    original_loader = torch.utils.data.DataLoader.__init__

    def loader(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("num_workers"):
            recorder.replaced["DataLoader: without workers, in the process itself"] += 1
        for key in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory",
                    "multiprocessing_context", "timeout", "pin_memory_device"):  # fmt: skip
            kwargs.pop(key, None)
        original_loader(self, *args, **kwargs)

    anything.utils.data.DataLoader.__init__ = loader


def _install_optimizers(dispatch: Any) -> None:
    """Patch torch.optim: foreach kernels take fake tensors, and states are named in memory."""
    import torch
    from torch._compile import _disable_dynamo
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim import optimizer as optimizers
    from torch.utils import _foreach_utils

    supported: Any = optimizers._foreach_supported_types
    supported.append(FakeTensor)

    def has_foreach(tensors: Any, device: Any) -> bool:
        return torch.device(device).type == "cuda"

    modules: Any = (_foreach_utils, torch.nn.utils.clip_grad)
    for module in modules:
        module._has_foreach_support = has_foreach
    optimizers.register_optimizer_step_post_hook(
        _disable_dynamo(lambda optimizer, args, kwargs: dispatch.memory.name_states(optimizer))
    )


def _install_processes(recorder: Recorder, job: Job) -> None:
    """Stand-ins of what starts a process for each GPU of a node: this process is one of them."""
    import torch.multiprocessing
    from torch.multiprocessing import spawn as module

    anything: Any = torch.multiprocessing
    inner: Any = module

    def start_processes(
        function: Any, args: Any = (), nprocs: int = 1, join: bool = True, *rest: Any, **kwargs: Any
    ) -> None:
        local = min(job.per_node, job.world)
        if nprocs != local:
            raise InputError(
                f"{recorder.user_line()}: {nprocs} processes are started for a node, where the job "
                f"has {local} ranks; --world-size {nprocs} would be as many"
            )
        recorder.replaced["torch.multiprocessing: one rank is run, in the process itself"] += 1
        function(job.local_rank, *args)

    for each in (anything, inner):
        each.start_processes = each.spawn = start_processes


def _install_sharding(dispatch: Any) -> None:
    """Have DTensor's operators on whole tensors, which ask for shapes alone, unrecorded."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    anything: Any = ShardingPropagator
    name = "_propagate_tensor_meta_non_cached"
    original = getattr(anything, name)

    def propagate(*args: Any, **kwargs: Any) -> Any:
        with dispatch.unrecorded():
            return original(*args, **kwargs)

    setattr(anything, name, propagate)


def _install_jagged() -> None:
    """Have nested tensors of jagged layout, whose ragged size stands for their offsets, fake ones.

    PyTorch makes a symbol of it only where it traces. Here each tensor of offsets gets a number of
    its own, as real ones do. Copied to the device and back it keeps that of the one before, where
    PyTorch takes both for real, or both for fake (`to_copy_default` of nested/_internal/ops.py).
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.nested._internal import nested_tensor as jagged
    from torch.nested._internal.nested_int import NestedIntNode

    fake: Any = FakeTensor
    real: Any = torch.Tensor
    original, symbols = fake.get_nested_int, jagged._tensor_symint_registry

    def ragged_size(self: Any, *, coeff: Any = 1) -> Any:
        if self.fake_mode.enter_stack:  # it is being traced
            return original(self, coeff=coeff)
        if self.nested_int_memo is None:
            anything: Any = torch
            self.nested_int_memo = anything.SymInt(NestedIntNode(jagged._tensor_id_counter, 1))
            jagged._tensor_id_counter += 1
        symbols[self] = self.nested_int_memo
        return self.nested_int_memo * coeff

    fake.get_nested_int = ragged_size
    real.nested_int_memo = property(jagged.get_tensor_symint)


def _install_values(recorder: Recorder, dispatch: Any) -> None:
    """Stand-ins of what reads values of a tensor, all at once or as a text."""
    import numpy as np
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._pytree import tree_map

    from .dispatch import is_fake

    tensor: Any = torch.Tensor
    original = {name: getattr(tensor, name) for name in ("tolist", "numpy", "__format__")}

    def values(self: Any) -> Any:
        if self.device.type == "cuda":
            size = self.numel() * self.element_size()
            recorder.copy(size, "copy to the host", blocking=True)
        what = f"{self.numel()} values of type {str(self.dtype)[6:]}"
        known = dispatch.values.sure(self)
        if known is not None and not recorder.values.asked():
            if dispatch.values.is_even(self):
                dispatch.data_dependent.list_even(known)
            return original["numpy"](known).copy()
        return np.full(
            tuple(self.shape), recorder.values.unknown(what, dispatch.values.likely(self))
        )

    def tolist(self: Any) -> Any:
        return values(self).tolist() if is_fake(self) else original["tolist"](self)

    def numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        return values(self) if is_fake(self) else original["numpy"](self, *args, **kwargs)

    def formatted(self: Any, form: str) -> str:
        if is_fake(self) and not self.dim():
            return format(self.detach().item(), form)
        text: str = original["__format__"](self, form)
        return text

    tensor.tolist, tensor.numpy, tensor.__format__ = tolist, numpy, formatted
    fake: Any = FakeTensor
    fake.tolist = tolist  # has its own, which reads number by number
    anything: Any = torch
    made = anything.tensor

    def new_tensor(data: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data, list | tuple):  # numbers among which there may be tensors
            data = tree_map(lambda each: each.item() if is_fake(each) else each, data)
        kwargs.pop("pin_memory", None)  # which needs a driver
        return made(data, *args, **kwargs)

    anything.tensor = new_tensor


def _install_hooks(recorder: Recorder, dispatch: Any) -> None:
    """Follow modules, backward passes and steps of optimizers."""
    import torch
    from torch._compile import _disable_dynamo
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers
    from torch.utils.weak import WeakIdKeyDictionary

    from .host_work import OptimizersOnCpu

    names: Any = WeakIdKeyDictionary()
    on_cpu = OptimizersOnCpu(recorder)

    def path_of(module: Any) -> str:
        if module not in names:
            for name, each in module.named_modules():
                for prefix in _PREFIXES:
                    name = name.replace(prefix, "")
                name = name.removesuffix("._orig_mod")
                names[each] = name
        return str(names[module])

    compiling = torch.compiler.is_compiling  # then Dynamo goes through what follows

    def entered(module: Any, args: Any) -> None:
        if compiling():
            return
        outermost = not recorder.module and torch._C._current_graph_task_id() < 0
        if outermost and torch.is_grad_enabled():
            recorder.step_begins()
        recorder.module.append(path_of(module))
        dispatch.origins.enter(module)

    def left(module: Any, args: Any, out: Any) -> None:
        if not compiling() and recorder.module:
            recorder.module.pop()
            dispatch.origins.leave()

    modules.register_module_forward_pre_hook(entered)
    modules.register_module_forward_hook(left, always_call=True)

    def begins(optimizer: Any, args: Any, kwargs: Any) -> None:
        on_cpu.begins()
        recorder.phase = int(Phase.OPTIMIZER)

    def ended(optimizer: Any, args: Any, kwargs: Any) -> None:
        on_cpu.stepped(optimizer)
        recorder.phase = int(Phase.NONE)
        recorder.optimizer_stepped(optimizer)

    # Of a compiled step Dynamo compiles neither them nor what they call.
    optimizers.register_optimizer_step_pre_hook(_disable_dynamo(begins))
    optimizers.register_optimizer_step_post_hook(_disable_dynamo(ended))
