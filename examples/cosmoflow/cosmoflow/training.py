"""Training with `fit`, and the comparison of predictions with true targets."""

from __future__ import annotations

import keras
import numpy as np
from convoy.data.batches import SequentialOrder

from cosmoflow.input import Input
from cosmoflow.plots import mean_error
from cosmoflow.progress import Progress, ProgressCallback
from cosmoflow.run_folder import RunFolder
from cosmoflow.volume_batches import VolumeBatches

# The number of validation samples that are plotted.
SHOWN = 512


def train(model: keras.Model, data: Input, progress: Progress) -> list[str]:
    """Train a model with validation after every epoch.

    Returns:
        Lines about the predictions, to be printed at the end.
    """
    model.fit(
        data.train,
        validation_data=data.validation,
        epochs=data.plan.settings.data.n_epochs,
        shuffle=False,
        verbose=0,
        callbacks=[ProgressCallback(progress)],
    )
    progress.folder.save_weights(model)
    if data.validation is None:
        return []
    samples = min(SHOWN, data.plan.settings.data.n_valid)
    order = SequentialOrder(samples, data.plan.batch.micro_batch)
    batches = VolumeBatches(data.validation.job, order, order.num_batches, 0, 0)
    return compare(np.asarray(model.predict(batches, verbose=0)), data, progress.folder)


def compare(predicted: np.ndarray, data: Input, folder: RunFolder) -> list[str]:
    """Plot predictions for the first validation samples, and return lines to print."""
    if not folder.writes:
        return []
    true = data.splits.validation.targets(range(len(predicted)))
    plot = folder.draw_predictions(true, predicted)
    error = float(np.abs(predicted - true).mean())
    lines = [
        f"Validation MAE {error:.4f} on {len(true)} samples; predicting their mean: "
        f"{mean_error(true):.4f}"
    ]
    return [*lines, f"Predicted and true: {plot}"] if plot else lines
