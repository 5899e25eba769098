"""Random data of a few samples in place of the downloads of Keras scripts.

`replace_downloads` replaces Keras's datasets, TensorFlow Datasets and trained weights. Every other
download becomes a file of the same name in the working folder. Stock Keras and Convoy get the same
data, so their losses can be compared without network access.
"""

import importlib
import inspect
import os
import shutil
import urllib.request
from pathlib import Path

import keras
import numpy as np

IMAGES = {
    "mnist": ((28, 28), 10),
    "fashion_mnist": ((28, 28), 10),
    "cifar10": ((32, 32, 3), 10),
    "cifar100": ((32, 32, 3), 100),
}
TEXTS = {"imdb": 2, "reuters": 46}
TABLES = {"boston_housing": 13, "california_housing": 8}
VOCABULARY = 1000
TEXT_LENGTHS = (20, 60)


def replace_downloads(script, samples):
    """Replace the downloads of a script.

    Args:
        script: path of the script.
        samples: number of training samples of a dataset; there are half as many test samples.
    """
    generator = np.random.default_rng(0)
    for names, load in ((IMAGES, image_data), (TEXTS, text_data), (TABLES, table_data)):
        for name, kind in names.items():
            module = getattr(keras.datasets, name)
            module.load_data = loader(load, generator, kind, samples)
    keras.utils.get_file = local_file
    urllib.request.urlretrieve = copy_local_file
    np.loadtxt = with_local_first_argument(np.loadtxt)
    for name in dir(keras.applications):
        leave_out_weights(getattr(keras.applications, name))
    # Without Graphviz it raises an error, and figures have no losses.
    keras.utils.plot_model = lambda *_, **__: None
    text = Path(script).read_text()
    if "tensorflow_datasets" in text:
        mock_tensorflow_datasets(samples)
    if "pandas" in text:
        pandas = importlib.import_module("pandas")
        pandas.read_csv = with_local_first_argument(pandas.read_csv)


def loader(load, generator, kind, samples):
    def load_data(*arguments, **keywords):
        words = keywords.get("num_words") or (arguments[1] if len(arguments) > 1 else None)
        return tuple(load(generator, kind, count, words) for count in (samples, samples // 2))

    return load_data


def image_data(generator, kind, count, _):
    shape, classes = kind
    images = generator.integers(0, 256, (count, *shape), dtype=np.uint8)
    labels = generator.integers(0, classes, (count, 1) if len(shape) == 3 else count)
    return images, labels.astype(np.uint8)


def text_data(generator, classes, count, words):
    lengths = generator.integers(*TEXT_LENGTHS, count)
    texts = np.empty(count, dtype=object)
    for position, length in enumerate(lengths):
        texts[position] = generator.integers(1, words or VOCABULARY, length).tolist()
    return texts, generator.integers(0, classes, count)


def table_data(generator, columns, count, _):
    features = generator.normal(size=(count, columns))
    return features.astype(np.float32), generator.uniform(5, 50, count).astype(np.float32)


def local_file(fname=None, origin=None, **_):
    """Return the path of a downloaded file, as `keras.utils.get_file` does."""
    return str(Path.cwd() / os.path.basename(fname or origin.split("?")[0]))


def copy_local_file(url, filename=None, *_):
    source = local_file(origin=url)
    if filename and Path(filename).resolve() != Path(source):
        shutil.copy(source, filename)
    return filename or source, None


def with_local_first_argument(function):
    def call(source, *arguments, **keywords):
        if isinstance(source, str) and "://" in source:
            source = local_file(origin=source)
        return function(source, *arguments, **keywords)

    return call


def leave_out_weights(found):
    """Make the models of a module of `keras.applications` start with random weights."""
    for name, model in vars(found).items() if inspect.ismodule(found) else ():
        if inspect.isfunction(model) and "weights" in inspect.signature(model).parameters:
            untrained = with_random_weights(model)
            setattr(found, name, untrained)
            if hasattr(keras.applications, name):
                setattr(keras.applications, name, untrained)


def with_random_weights(model):
    signature = inspect.signature(model)

    def make(*arguments, **keywords):
        bound = signature.bind(*arguments, **keywords)
        bound.arguments["weights"] = None
        # `name` and others of Keras's models are keyword arguments.
        return model(*bound.args, **bound.kwargs)

    return make


def mock_tensorflow_datasets(samples):
    """Make `tensorflow_datasets.load` return random samples, from the features of each dataset."""
    testing = importlib.import_module("tensorflow_datasets").testing
    testing.mock_data(num_examples=samples, policy=testing.MockPolicy.USE_CODE).__enter__()
