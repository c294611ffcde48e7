"""From an experiment to a predicted step, with its uncertainty, assumptions and limits.

Read in this order, which is that of one prediction (`mpisim.simulate`).

``prepared``, ``prepared_program``
    Experiment, or program file, → all that its simulation needs; `prepare` calls the modules below.
``hardware``, ``memory_fit``, ``network``, ``variation``
    Its cluster and GPUs; whether it fits into memory; its network; how its ranks differ.
``step_constants``, ``calibrated``
    Constants fitted to measured steps; kernel models and networks multiplied by them.
``circuits``
    Circuits that communications wait for, where the network has to set them up.
``execution``, ``short_steps``, ``extrapolation``, ``long_steps``, ``launches``
    A run of the engine, or many; which shorter steps tell the time of a long one; that time from
    them, nearly or, with all else of its run, exactly; what CUDA graphs gain.
``path_shares``, ``uncertainty``
    The numbers that each piece of a critical path depends on; from their error bars that of the
    step time.
``memory_course``
    Memory of a rank over the step, at the times of a run.
``quantities``, ``sensitivities``, ``library_choices``
    What a step depends on, and how it answers to each along its critical path; what NCCL chooses.
``statements``, ``program_statements``, ``unused_keys``, ``unused_network_keys``
    Statements of a prediction, and of the run of a program file: uncertainty, assumptions, limits;
    keys that change nothing.
``published``
    A prediction beside the published figures of its experiment.
"""
