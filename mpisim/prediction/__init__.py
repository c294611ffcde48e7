"""Experiment → predicted step time with its uncertainty, assumptions and limits.

Read in this order, which is the order of one prediction (`mpisim.simulate`).

``prepared``, ``prepared_program``
    Experiment or program file → everything its simulation needs; `prepare` calls the next modules.
``hardware``, ``memory_fit``, ``network``, ``variation``
    Cluster and GPUs; check that the model fits into memory; network; speed differences of ranks.
``step_constants``, ``calibrated``
    Constants fitted to measured steps; kernel models and networks multiplied by them.
``circuits``
    Delays of communications that wait for an optical circuit to be set up.
``execution``, ``short_steps``, ``extrapolation``, ``long_steps``, ``launches``
    One run of the engine, or several with other seeds. For a step of many micro-batches: shorter
    steps to simulate in its place, the step time extrapolated from them, and its whole run, to the
    picosecond. Gain from CUDA graphs.
``path_shares``, ``uncertainty``
    Hardware and model numbers that each piece of the critical path depends on; their error bars
    propagated to the step time.
``memory_course``
    Memory use of a rank over the time of a step.
``quantities``, ``sensitivities``, ``library_choices``
    Hardware quantities (bandwidths, FLOP/s, ...) and d(step time)/d(quantity) along the critical
    path; NCCL's choices of algorithm and protocol.
``framework_lines``, ``statements``, ``program_statements``
    Keys that a framework's profile has set; uncertainty, assumptions and limits stated with the
    result, of experiments and of program files.
``effective_keys``, ``unused_keys``, ``unused_network_keys``
    Keys that the user gave and that have no effect.
``published``
    A prediction beside the published figures of its experiment.
"""
