"""Measured collectives, what is fitted to them, and models beside NCCL's own.

``measured.read(paths, said)``, ``batches.batches``, ``batches.select``
    Outputs of nccl-tests and tables of measurements, rows sorted by curve and group, and halves
    and grades of them.
``platforms.platform_of(row)``
    Which machine a measurement was taken on, and what NCCL sees of it.
``calibration.ours()``, ``calibration.Calibration.read(path)``
    Fitted numbers by platform, family and architecture, with their errors.
``calibrate.calibrate(batches, split)``
    Fits all tables that some measurements allow.
``own.calibrate_own(name, batches, split)``, ``overlay.served(calibration, owners)``
    Fits a user's own platform, and finds the numbers of a machine: a user's own before ours.
``models.predictor(name, calibration, training)``
    NCCL's model, and three that learn from measurements.
"""
