"""Measured collectives, what is fitted to them, and models beside NCCL's own.

``measured.read(paths)``, ``batches.batches``, ``batches.select``
    Tables of measurements, rows sorted by curve and group, and halves and grades of them.
``platforms.platform_of(row)``
    Which machine a measurement was taken on, and what NCCL sees of it.
``calibration.ours()``, ``calibration.Calibration.read(path)``
    Fitted numbers by platform, family and architecture, with their errors.
``calibrate.calibrate(batches, split)``
    Fits all tables that some measurements allow.
``models.predictor(name, calibration, training)``
    NCCL's model, and three that learn from measurements.
"""
