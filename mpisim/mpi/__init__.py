"""Idioms over an MPI communicator, reductions, and a check of the MPI library. Read in this order.

``parallel``
    Errors that all processes share; progress on one.
``phases``, ``time_left``
    What is being done, as a line on a terminal or in a log; how long the rest takes.
``monitor``
    The status of a run, for those who follow it.
``reductions``
    Minimum, maximum and sum over processes: the only calls of allreduce.
``library``
    What mpisim relies on of an MPI library, tried at start.
"""
