"""From an experiment to a predicted step, and what a prediction says of itself.

``case``
    An experiment ready to be simulated: its hardware, program, network and memory.
``execution``, ``steady``, ``samples``
    A case through the engine: with the slowdown of what overlaps; only its step time, from shorter
    steps; many times, with random factors.
``statements``, ``error_bar``
    What a prediction says of itself: error bar, assumptions, what was left out.
``hardware``, ``network``, ``variation``, ``slowest``, ``memory_fit``
    Of an experiment: its GPUs, its network, how its ranks differ, at whose pace they work, whether
    it fits into memory.
``step_constants``, ``calibrated``
    Constants fitted to measured steps, and the models of kernels and networks that have them.
``path_shares``, ``uncertainty``
    What a critical path rests on, and from that how far a step time may be off.
"""
