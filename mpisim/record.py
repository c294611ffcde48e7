"""Record a training job on real GPUs, as ``mpisim replay`` likes it best.

Of some batches nothing but the time is taken, of the ones behind them traces: a profiler slows
what it looks at, so times and traces are of different batches. That is TrioSim's protocol: 30
batches to warm up, 10 whose mean counts, one traced. PyTorch is imported when a recording begins.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from .base.errors import UsageError
from .base.files import check_output, rename_into_place

__all__ = ["Recording", "record"]

PROFILER_WARMUP = 1
"""Batches that the profiler runs before what it keeps: its first is slower than the others."""


def record(
    folder: str | Path,
    steps: int = 1,
    *,
    warmup: int = 30,
    timed: int = 10,
    execution_trace: bool = True,
    modules: bool = False,
    memory: bool = False,
    overwrite: bool = False,
) -> Recording:
    """Record a training loop: a context whose `Recording.step` is called after each batch.

    Every rank writes ``kineto_rankR.json.gz``, ``et_rankR.json.gz``, ``times_rankR.json`` and, with
    `memory`, ``memory_rankR.pickle``, once the last batch is over; the loop may go on.

    Parameters
    ----------
    folder : str or Path
        Where the files go; it is made if need be. The ranks may share it.
    steps : int
        Batches to trace. Replay leaves out the first of several.
    warmup, timed : int
        Batches before those that are timed, and how many these are.
    execution_trace : bool
        Whether to write PyTorch's execution trace (operators and tensors) of the traced batches.
    modules : bool
        Whether to note the modules and lines that operators are called from; slows the host down.
    memory : bool
        Whether to note allocations: in the trace, and from here on in a memory snapshot
        (``mpisim memory``).
    overwrite : bool
        Whether files of these names may be replaced.

    Raises
    ------
    UsageError
        If a number cannot be, PyTorch is missing, or files exist already; and from the context, if
        the loop ends before the traces are complete.

    Examples
    --------
    >>> with mpisim.record("traces/") as recording:  # doctest: +SKIP
    ...     for batch in data:
    ...         train(batch)
    ...         recording.step()
    """
    for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0), ("timed", timed, 0)):
        if not isinstance(value, int) or value < least:
            raise UsageError(f"record: {name} is {value!r}; it must be {least} or more")
    try:
        import torch
    except ImportError as error:
        raise UsageError("record: PyTorch is not installed") from error
    if memory and not torch.cuda.is_available():
        raise UsageError("record: memory=True needs a GPU; there is none")
    return Recording(
        Path(folder), steps, warmup, timed, execution_trace, modules, memory, overwrite
    )


class Recording:
    """A loop that is being recorded; `record` makes one.

    Attributes
    ----------
    done : bool
        Whether all files are written.
    """

    def __init__(
        self,
        folder: Path,
        steps: int,
        warmup: int,
        timed: int,
        execution_trace: bool,
        modules: bool,
        memory: bool,
        overwrite: bool,
    ) -> None:
        import torch

        self.done = False
        self._folder = folder
        self._steps, self._warmup, self._timed = steps, warmup, timed
        self._modules, self._memory, self._overwrite = modules, memory, overwrite
        self._gpu = torch.cuda.is_available()
        self._batches = 0
        self._marks: list[Any] = []
        self._profiler: Any = None
        self._observer: Any = None
        self._scratch: Path | None = None
        distributed = torch.distributed
        there = distributed.is_available() and distributed.is_initialized()
        self._rank = distributed.get_rank() if there else int(os.environ.get("RANK", "0"))
        self._ranks = (
            distributed.get_world_size() if there else int(os.environ.get("WORLD_SIZE", "1"))
        )
        rank = self._rank
        self._names = {"kineto": f"kineto_rank{rank}.json.gz", "times": f"times_rank{rank}.json"}
        if execution_trace:
            self._names["et"] = f"et_rank{rank}.json.gz"
        if memory:
            self._names["memory"] = f"memory_rank{rank}.pickle"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"record: {folder}: {error.strerror}") from error
        for name in self._names.values():
            check_output(folder / name, overwrite=overwrite)

    def __enter__(self) -> Recording:
        # In the folder itself: files get their names by a link, which stays on one file system.
        self._scratch = Path(tempfile.mkdtemp(prefix=".record", dir=self._folder))
        if self._memory:
            import torch

            torch.cuda.memory._record_memory_history(max_entries=10_000_000)
        if self._timed and not self._warmup:
            self._marks.append(self._mark())
        self._profile_if_due()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.done:
            self._stop()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        if self._memory:
            import torch

            torch.cuda.memory._record_memory_history(None)
        if kind is None and not self.done:
            raise UsageError(
                f"record: the loop ended after {self._batches} batches of the {self._needed} that "
                f"are needed: {self._warmup} to warm up, {self._timed} timed, {PROFILER_WARMUP} "
                f"for the profiler to start, {self._steps} traced"
            )

    @property
    def _needed(self) -> int:
        return self._warmup + self._timed + PROFILER_WARMUP + self._steps

    def step(self) -> bool:
        """End a batch; return whether all is recorded, and the loop may end."""
        if self.done:
            return True
        self._batches += 1
        over = self._batches - self._warmup
        if self._timed and 0 <= over <= self._timed:
            self._marks.append(self._mark())
        if self._profiler is not None:
            self._profiler.step()
        self._profile_if_due()
        if self._batches == self._needed:
            self._stop()
            self._write()
            self.done = True
        return self.done

    def _mark(self) -> Any:
        """Return the time now, on the GPU where there is one."""
        if not self._gpu:
            return time.perf_counter()
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _times(self) -> list[float]:
        """Return the seconds of each timed batch."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if not self._gpu:
            return [end - begin for begin, end in pairs]
        return [begin.elapsed_time(end) / 1000 for begin, end in pairs]

    def _profile_if_due(self) -> None:
        """Start the profiler where the batches without it are over."""
        if self._batches != self._warmup + self._timed or self._profiler is not None:
            return
        from torch import profiler

        kinds = [profiler.ProfilerActivity.CPU]
        options: dict[str, Any] = {}
        if self._gpu:
            import torch

            torch.cuda.synchronize()  # ends the timed batches, for the profiler's start to be apart
            kinds.append(profiler.ProfilerActivity.CUDA)
            # Which stream waits for which event: replay need not infer it.
            options["experimental_config"] = _sync_events()
        if "et" in self._names:
            assert self._scratch is not None
            self._observer = profiler.ExecutionTraceObserver()
            self._observer.register_callback(str(self._scratch / "et.json"))
            options["execution_trace_observer"] = self._observer
        self._profiler = profiler.profile(
            activities=kinds,
            schedule=profiler.schedule(
                wait=0, warmup=PROFILER_WARMUP, active=self._steps, repeat=1
            ),
            on_trace_ready=self._export,
            record_shapes=True,  # what collectives and products are of
            with_stack=self._modules,
            profile_memory=self._memory,
            **options,
        )
        self._profiler.start()

    def _export(self, profiler: Any) -> None:
        assert self._scratch is not None
        profiler.export_chrome_trace(str(self._scratch / "kineto.json.gz"))

    def _stop(self) -> None:
        """End the profiler, which then writes its trace."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
        if self._observer is not None:
            self._observer.unregister_callback()
            self._observer = None

    def _write(self) -> None:
        """Give all files their names, complete."""
        import torch

        assert self._scratch is not None
        if self._gpu:
            torch.cuda.synchronize()
        times = self._times()
        facts = {
            "rank": self._rank,
            "world_size": self._ranks,
            "warmup": self._warmup,
            "seconds": times,
            "mean": sum(times) / len(times) if times else None,
            "traced_steps": self._steps,
            "device": torch.cuda.get_device_name() if self._gpu else "cpu",
            "torch": torch.__version__,
        }
        (self._scratch / "times.json").write_text(json.dumps(facts, indent=1) + "\n")
        made = {"kineto": "kineto.json.gz", "times": "times.json", "et": "et.json.gz"}
        if "et" in self._names:
            with (
                open(self._scratch / "et.json", "rb") as source,
                gzip.open(self._scratch / made["et"], "wb") as packed,
            ):
                shutil.copyfileobj(source, packed)
        if self._memory:
            made["memory"] = "memory.pickle"
            torch.cuda.memory._dump_snapshot(str(self._scratch / made["memory"]))
        for what, name in self._names.items():
            target = self._folder / name
            rename_into_place(self._scratch / made[what], target, target, overwrite=self._overwrite)


def _sync_events() -> Any:
    """Return the setting that has waits of streams recorded; None where PyTorch has none."""
    from torch._C._profiler import _ExperimentalConfig

    try:
        return _ExperimentalConfig(enable_cuda_sync_events=True)
    except TypeError:  # before PyTorch 2.2
        return None
