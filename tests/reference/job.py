"""A job, one run at a time and one checkpoint after another, as one would tell it: no formulas.

`mpisim.job.monte_carlo` computes many runs at once from the lengths of what lies between two
interruptions; here a clock goes from event to event.
"""

from __future__ import annotations

import math

import numpy as np

from mpisim.job.model import JobModel


def numbers(seed: int, run: int, interruptions: int) -> list[tuple[float, ...]]:
    """The random numbers of a run, as the simulator draws them."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, run], np.uint64)))
    generator.standard_normal(4)  # of errors, which are drawn first
    return [tuple(1 - each for each in generator.random(3)) for _ in range(interruptions)]


def time_of_run(m: JobModel, drawn: list[tuple[float, ...]]) -> tuple[float, int]:
    """Job, random numbers → when it is done, and how often it was interrupted."""
    now, saved, restarts, lost_nodes = 0.0, 0, False, 0
    ready = [0.0] * max(m.spares, 0)
    for interrupted, (first, second, third) in enumerate(drawn):
        failure = planned = math.inf
        if m.rate:
            scale = 1 / (m.rate * math.gamma(1 + 1 / m.shape))
            failure = scale * (-math.log(first)) ** (1 / m.shape)
        if m.planned_rate:
            planned = -math.log(second) / m.planned_rate
        end = now + min(failure, planned)
        clock = now + (m.restart + m.rewarmup if restarts else 0.0)
        # (when it is whole, steps in it)
        checkpoints = [(-math.inf, saved)]
        done = saved
        while clock < end:
            for _ in range(min(m.interval, m.steps - saved - (done - saved))):
                if clock + m.step > end:
                    clock = end
                    break
                clock += m.step
                done += 1
            if clock >= end or clock + m.stall > end:
                break
            clock += m.stall
            if done == m.steps:
                if clock + m.persist <= end:
                    return clock + m.persist, interrupted
                break
            checkpoints.append((clock + m.persist, done))
        now = end
        if planned < failure:
            if done > saved:
                now += m.stall + m.persist
            if done == m.steps:
                return now, interrupted
            saved = done
            now += m.maintenance
        else:
            saved = max(steps for whole, steps in checkpoints if whole <= end)
            now += m.detection
            if third <= m.node_share:
                lost_nodes += 1
                if m.spares == 0:
                    now_ready = now + m.repair
                elif m.spares > 0:
                    first_ready = min(ready)
                    now_ready = max(now, min(first_ready, now + m.repair))
                    ready.remove(first_ready)
                    ready.append(now + m.repair)
                else:
                    now_ready = now
                now = now_ready + m.swap
        restarts = True
    raise AssertionError("too few random numbers")
