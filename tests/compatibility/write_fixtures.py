"""Writes the fixtures: files of every format, and the numbers that are expected from them.

The fixtures are those of commit ed3144e. This script imports modules by the names that they had
there, so it runs only at that commit:

    export JAX_HLO_SOURCE_FILE_CANONICALIZATION_REGEX='^/.*/'
    CONVOY_DEVICES=4 python -m tests.compatibility.write_fixtures

The first line keeps the paths of source files out of exported programs.
It replaces what is in `fixtures/`: an archive for each kind of file, and `expected/` with the
numbers.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import convoy
import keras
import numpy as np
from convoy import ipu
from convoy.ipu.keras.layers import CaptureActivationGradients, CaptureUpstreamGradients
from convoy.layers import (
    Decompress,
    Dirac,
    MeanOfViews,
    Offset,
    Preprocess,
    SyntheticImages,
    UpdateBatchNormalization,
    Views,
    Whiten,
)
from convoy.vision.loss import SmoothedCrossentropy
from convoy.vision.models.cifar_resnet import Subsample
from convoy.vision.schedules import (
    Constant,
    Cosine,
    MaskWarmUp,
    Polynomial,
    ShiftWarmUp,
    Staircase,
    Stepped,
)
from convoy.volumes.learning_rate import WarmUpAndDecay
from keras import layers

from .subjects import (
    CLASSES,
    FIXTURES,
    TRAIN,
    VARIANTS,
    StopError,
    StopInSecondEpoch,
    command,
    estimated,
    estimator,
    image_bytes,
    images,
    ipu_strategy,
    lars,
    load,
    make,
    momentum,
    network,
    rates,
    train,
    train_estimator,
    train_ipu,
    train_on,
    wrapped,
)

SCHEDULES = {
    "constant": Constant(0.1),
    "cosine": ShiftWarmUp(Cosine(0.4, 40), 5),
    "stepped": Staircase(Stepped([10, 30], [0.3, 0.2, 0.1]), 7),
    "polynomial": MaskWarmUp(Polynomial(0.5, 50, 0.05, 2.0), 8),
    "volumes": WarmUpAndDecay(0.01, 0.08, 3, {4: 0.25, 6: 0.125}, 6),
}


def expect(name, arrays):
    path = FIXTURES / "expected" / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def write_checkpoints():
    for name, variant in VARIANTS.items():
        folder = FIXTURES / "checkpoints" / name
        expect(f"checkpoints-{name}", train(make(variant), variant))
        best = "min:val_loss" if name == "plain" else None
        checkpoints = convoy.Checkpoints(folder, every=4, keep=1, best=best, recipe={"note": name})
        with suppress(StopError):
            train(make(variant), variant, checkpoints, StopInSecondEpoch())
        (folder / ".lock").unlink()


def layered():
    """The layers and the initializer that networks of `convoy train` are made of."""
    inputs = keras.Input((8, 8, 1), dtype="uint8")
    x = Preprocess("standardise", flip=True, name="preprocess")(Decompress(name="bytes")(inputs))
    x = Views(2, name="views")(x)
    x = Whiten(name="whiten")(x)
    x = layers.Conv2D(4, 3, use_bias=False, kernel_initializer=Dirac(seed=1), name="dirac")(x)
    x = UpdateBatchNormalization(micro_batches=2, name="norm")(x)
    x = Subsample(name="subsample")(Offset(4.0, name="offset")(x))
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(len(CLASSES), "softmax", name="head")(x)
    return keras.Model(inputs, MeanOfViews(2, name="mean")(x), name="layered")


def write_keras_files():
    folder = FIXTURES / "keras"
    folder.mkdir(parents=True)
    keras.utils.set_random_seed(4)
    model = layered()
    model.save(folder / "layers.keras")
    expect("keras-layers", {"predicted": model.predict(image_bytes(), verbose=0)})

    inputs = keras.Input((6, 6, 1))
    x = layers.Flatten()(CaptureUpstreamGradients(layers.Conv2D(2, 3))(inputs))
    model = keras.Model(inputs, CaptureActivationGradients(layers.Dense(3, "softmax"))(x))
    model.compile(momentum(), "sparse_categorical_crossentropy", metrics=["accuracy"])
    train_on(model)
    model.save(folder / "captured.keras")
    expect("keras-captured", train_on(load(folder / "captured.keras")))

    numbers = keras.Input((), dtype="int32")
    model = keras.Model(numbers, SyntheticImages((2, 2, 1), as_bytes=True)(numbers))
    model.save(folder / "synthetic.keras")
    model = load(folder / "synthetic.keras")
    expect("keras-synthetic", {"predicted": model.predict(np.zeros(3, "int32"), verbose=0)})

    for name, optimizer in {"lars": lars(), "wrapped": wrapped()}.items():
        model = network()
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        train_on(model)
        model.save(folder / f"{name}.keras")
        expect(f"keras-{name}", train_on(load(folder / f"{name}.keras")))

    for name, schedule in SCHEDULES.items():
        model = keras.Sequential([keras.Input((2,)), layers.Dense(3, "softmax")])
        model.compile(keras.optimizers.SGD(schedule), SmoothedCrossentropy(0.1))
        x, y = np.ones((4, 2), "float32"), np.arange(4) % 3
        model.save(folder / f"schedule-{name}.keras")
        loss = np.array(model.evaluate(x, y, verbose=0))
        expect(f"keras-schedule-{name}", {"rates": rates(model), "loss": loss})


def write_ipu_options():
    folder = FIXTURES / "ipu"
    folder.mkdir(parents=True)
    keras.utils.set_random_seed(6)
    for name in ("plain", "staged"):
        with ipu_strategy().scope():
            model = keras.Sequential(
                [keras.Input((4,)), layers.Dense(3), layers.Dense(1)], name=name
            )
            model.compile(momentum(), "mse", steps_per_execution=4)
            if name == "staged":
                model.set_pipelining_options(
                    4, device_mapping=[1, 0], gradient_accumulation_reduction_method="mean"
                )
                model.set_pipeline_stage_assignment([0, 1])
            else:
                model.set_gradient_accumulation_options(
                    2, gradient_accumulation_reduction_method="mean"
                )
            train_ipu(model)
            model.save(folder / f"{name}.keras")
            expect(f"ipu-{name}", train_ipu(model))
    ipu.config.reset_ipu_configuration()


def write_estimators():
    for kind in ("plain", "staged"):
        folder = FIXTURES / "estimators" / kind
        trained = estimator(kind, folder)
        train_estimator(trained)
        expect(f"estimators-{kind}-before", estimated(trained))
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / kind
            shutil.copytree(folder, copy)
            expect(f"estimators-{kind}-after", train_estimator(estimator(kind, copy)))
        (folder / ".lock").unlink()


def write_run():
    """Train, then remove what a run that was killed before its last checkpoint does not have."""
    folder = FIXTURES / "train"
    command("train", *TRAIN, "--output-dir", "fixtures/train")
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    (FIXTURES / "expected" / "train.json").write_text(json.dumps(rows, indent=1) + "\n")
    shutil.rmtree(max((folder / "state").glob("epoch-*")))
    (folder / "state" / ".lock").unlink()
    for name in ("curves.png", "checkpoints/epoch_2.0.weights.h5"):
        (folder / name).unlink(missing_ok=True)
    for file in folder.glob("events.*"):
        file.unlink()


def write_exports():
    folder = FIXTURES / "exports"
    keras.utils.set_random_seed(8)
    x, _ = images()
    model = network()
    convoy.export(model, folder / "convoy", batch_sizes=(1, 2), class_names=CLASSES)
    expect("exports-convoy", {"predicted": model.predict(x[:4], verbose=0)})

    # Keras refuses to load a lambda, so that the server runs the portable programs.
    inputs = keras.Input((6, 6, 1))
    doubled = layers.Lambda(lambda x: 2 * x, output_shape=(6, 6, 1))(inputs)
    portable = keras.Model(inputs, model(doubled))
    convoy.export(portable, folder / "portable", batch_sizes=(1,))
    expect("exports-portable", {"predicted": portable.predict(x[:4], verbose=0)})

    for name, source in {"train": "train", "layers": "keras/layers.keras"}.items():
        words = ("--checkpoint", f"fixtures/{source}", "--export-dir", f"fixtures/exports/{name}")
        command("export", *words, "--batch-sizes", "1")
        served = keras.saving.load_model(folder / name / "1" / "model.keras", compile=False)
        expect(f"exports-{name}", {"predicted": served.predict(image_bytes(), verbose=0)})


def write_report():
    folder = FIXTURES / "report"
    x, y = images()
    strategy = convoy.Strategy(devices=1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((36,)), layers.Dense(3, "softmax")])
        model.compile(momentum(), "sparse_categorical_crossentropy", steps_per_execution=3)
    with strategy.record(folder):
        model.fit(x.reshape(24, 36), y, batch_size=4, epochs=2, verbose=0)
    with tempfile.TemporaryDirectory() as scratch:
        files = (f"{scratch}/page.html", f"{scratch}/trace.json")
        command("report", folder, "--page", files[0], "--trace", files[1])
        events = json.loads(Path(files[1]).read_text())["traceEvents"]
    spans = sorted((event["ts"], event["dur"]) for event in events if event["ph"] == "X")
    expect("report", {"spans": np.array(spans)})


def main():
    shutil.rmtree(FIXTURES, ignore_errors=True)
    write_checkpoints()
    write_keras_files()
    write_ipu_options()
    write_estimators()
    write_run()
    write_exports()
    write_report()
    for folder in FIXTURES.iterdir():
        if folder.name != "expected":
            shutil.make_archive(str(folder), "xztar", folder)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
