"""Measured collectives (nccl-tests, CSV) → calibration of the network model.

Read in this order.

Measurements
    ``measurement`` (one measured communication), ``runs`` and ``nccl_tests`` (outputs of
    nccl-tests), ``published_tables`` (tables in CSV), ``read`` (any of these files), ``platforms``
    (the machine of a measurement), ``batches`` (rows sorted by curve and group; train and test
    halves).
Calibration
    ``formulas`` (cost formulas and their numbers), ``fit`` (robust least squares, cross
    validation), ``calibration`` (the file of fitted numbers and errors; which of them serve a
    machine), ``calibrate`` (measurements → calibration).
Models beside NCCL's
    ``models`` (by name, for ``mpisim validate collectives``), ``echo_network`` (Echo's formulas as
    the network of an experiment).
"""
