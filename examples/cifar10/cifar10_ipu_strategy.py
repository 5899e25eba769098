"""CIFAR-10 with a Keras model in the scope of an IPUStrategy.

    python3 cifar10_ipu_strategy.py

Expected: 81 % validation accuracy after 150 epochs, as stated by Graphcore's example.
"""

from __future__ import annotations

from network import LEARNING_RATE, layers, load_data, parser, show

from convoy import ipu  # isort: skip
import keras  # isort: skip


def main() -> None:
    arguments = parser("CIFAR-10 with IPUStrategy").parse_args()
    batch = arguments.batch_size
    print("Loading the data...")
    (x_train, y_train), (x_test, y_test) = load_data(arguments.dataset_path)
    whole = len(x_train) - len(x_train) % batch

    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()

    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        print("Initialize the model")
        model = keras.Sequential(
            [keras.Input((32, 32, 3)), *layers(), keras.layers.Activation("softmax")]
        )
        model.compile(
            optimizer=keras.optimizers.SGD(LEARNING_RATE),
            loss="sparse_categorical_crossentropy",
            metrics=["sparse_categorical_accuracy"],
            steps_per_execution=whole // batch,
        )
        print("Training...")
        model.fit(x_train[:whole], y_train[:whole], batch_size=batch, epochs=arguments.epochs)
        print("Check the result")
        loss, accuracy = model.evaluate(x_test, y_test, batch_size=batch)
    show({"loss": loss, "accuracy": accuracy})


if __name__ == "__main__":
    main()
