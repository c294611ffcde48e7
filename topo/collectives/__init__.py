"""Measured collectives, what is fitted to them, and models beside NCCL's own.

``measured.read(paths)``
    Tables of measurements.
``platforms.Platforms``
    Which system a measurement was taken on.
"""
