"""A reader's own training, by stock Keras."""

import keras
import numpy as np

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
model.compile("sgd", "mse")
x = np.arange(64).reshape(16, 4) / 64
model.fit(x, x[:, :2], batch_size=4)
