"""Training by `fit`."""

from __future__ import annotations

import keras
import numpy as np
from convoy.data.batches import SequentialOrder

from cosmoflow.input import Input
from cosmoflow.plots import mean_error
from cosmoflow.progress import Report, Watch
from cosmoflow.run_folder import RunFolder
from cosmoflow.volume_batches import VolumeBatches

# Of the validation samples, how many are drawn beside what is true.
SHOWN = 512


def train(model: keras.Model, data: Input, report: Report) -> None:
    """Train a model, and validate it after every epoch."""
    model.fit(
        data.train,
        validation_data=data.validation,
        epochs=data.plan.settings.data.n_epochs,
        shuffle=False,
        verbose=0,
        callbacks=[Watch(report)],
    )
    report.folder.save_weights(model)


def show_predictions(model: keras.Model, data: Input, folder: RunFolder) -> list[str]:
    """Predict some of the validation samples, draw them, and return what there is to say."""
    if data.validation is None:
        return []
    shown = min(SHOWN, data.plan.settings.data.n_valid)
    chosen = SequentialOrder(shown, data.plan.batch.micro_batch)
    batches = VolumeBatches(data.validation.make, chosen, chosen.num_batches, 0, 0)
    return compare(np.asarray(model.predict(batches, verbose=0)), data, folder)


def compare(predicted: np.ndarray, data: Input, folder: RunFolder) -> list[str]:
    """Draw predictions of the first validation samples beside what is true."""
    if not folder.writes:
        return []
    true = data.splits.validation.targets(range(len(predicted)))
    picture = folder.draw_predictions(true, predicted)
    error = float(np.abs(predicted - true).mean())
    lines = [
        f"Validation MAE {error:.4f} on {len(true)} samples; predicting their mean: "
        f"{mean_error(true):.4f}"
    ]
    return [*lines, f"Predicted and true: {picture}"] if picture else lines
