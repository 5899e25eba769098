"""The two runs that the pictures in the documentation show: ResNet-8, whole and in two stages."""

import convoy
import numpy as np
from benchmarks.recording import make_model
from convoy.report.files import read


def reports(folder):
    """Record both runs, and return their reports."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(640, 32, 32, 3)).astype("float32")
    y = rng.integers(10, size=640)
    x += 0.3 * y[:, None, None, None]
    found = []
    for name, stages, accumulation in (("whole", 1, 1), ("staged", 2, 8)):
        strategy = convoy.Strategy(devices=stages, gradient_accumulation=accumulation)
        model = make_model(strategy, steps_per_execution=8)
        if stages > 1:
            convoy.split(model, stages, batch_size=16)
        with strategy.record(folder / name):
            model.fit(
                x[:512],
                y[:512],
                batch_size=16,
                epochs=3,
                verbose=0,
                validation_data=(x[512:], y[512:]),
                callbacks=[convoy.Checkpoints(folder / f"{name}-checkpoints")],
            )
        report = read(folder / name)
        # The page names a report by its folder.
        object.__setattr__(report, "folder", f"resnet8/{name}")
        found.append(report)
    return found
