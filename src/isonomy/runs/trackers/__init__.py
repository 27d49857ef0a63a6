"""Trackers of experiments: MLflow, TensorBoard, Weights & Biases; one file per tracker.

Each file has a class with the methods of `base.Backend`. Its package is an extra, imported when the
config or the command line asks for it. To add one, write such a file and add it to `BACKENDS`.
"""

from isonomy.runs.trackers.registry import BACKENDS, require, tracked

__all__ = ["BACKENDS", "require", "tracked"]
