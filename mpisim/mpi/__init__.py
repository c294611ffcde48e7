"""Idioms over an MPI communicator, reductions, and a check of the MPI library. Read in this order.

``parallel``
    Errors that all processes share; progress on one.
``reductions``
    Minimum, maximum and sum over processes: the only calls of allreduce.
``library``
    What mpisim relies on of an MPI library, tried at start.
"""
