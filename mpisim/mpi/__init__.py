"""Idioms over an MPI communicator, the only module that reduces, and the test of the MPI library.

``parallel``
    Errors that all processes share; progress on one.
``reductions``
    Minimum, maximum and sum over processes: the only calls of allreduce.
``library``
    What mpisim relies on of an MPI library, tried at start.
"""
