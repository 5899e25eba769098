"""One input pipeline of `input_pipeline.py`, in its own process: prepares batches on request.

Started with the name of a pipeline, the folder of the data and the number of cores. Prints "ready"
after the first batches. For each line of input, a number of seconds, it prepares batches for that
time and prints the images per second.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

BATCH, SIZE = 64, 224
# Batches that are dropped at the start of a turn: what was made ahead, before the clock started.
AHEAD = 12


def convoy_batches(root: Path, cores: int):
    """Ours, from record files or from a folder."""
    from convoy.data.augment import Transformation
    from convoy.data.batches import Order
    from convoy.data.catalog import DATASETS
    from convoy.data.image_batches import ImageBatches, ImageBatchJob
    from convoy.data.image_files import find_images

    files = find_images(root, "train")
    count = len(files) // BATCH
    make = ImageBatchJob(
        files, BATCH, Transformation(DATASETS["imagenet"], "bytes"), training=True, flip=True
    )
    order = Order(len(files), BATCH, batches_per_epoch=count, shuffle=True, seed=0)
    batches = ImageBatches(make, order, count, cores)
    while True:
        for number in range(count):
            yield batches[number]
        batches.on_epoch_end()


def tf_data(root: Path, cores: int):
    """As TensorFlow's own ResNet examples do: only the part that is shown is decoded."""
    import tensorflow as tf

    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def show(record):
        found = tf.io.parse_single_example(record, features)
        encoded = found["image/encoded"]
        shape = tf.image.extract_jpeg_shape(encoded)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros([1, 0, 4]),
            min_object_covered=0.1,
            aspect_ratio_range=(0.75, 1.33),
            area_range=(0.05, 1.0),
            max_attempts=100,
            use_image_if_no_bounding_boxes=True,
        )
        top, left, _ = tf.unstack(begin)
        height, width, _ = tf.unstack(size)
        window = tf.stack([top, left, height, width])
        image = tf.image.decode_and_crop_jpeg(encoded, window, channels=3)
        image = tf.image.random_flip_left_right(image)
        image = tf.cast(tf.image.resize(image, (SIZE, SIZE)), tf.uint8)
        return image, found["image/class/label"] - 1

    options = tf.data.Options()
    options.deterministic = False
    options.threading.private_threadpool_size = cores
    shards = sorted(str(path) for path in root.glob("train-*"))
    dataset = (
        tf.data.Dataset.from_tensor_slices(shards)
        .shuffle(len(shards))
        .repeat()
        .interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=cores)
        .shuffle(512)
        .map(show, num_parallel_calls=cores)
        .batch(BATCH, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )
    yield from dataset.as_numpy_iterator()


def torch_loader(root: Path, cores: int):
    """As torchvision's `ImageFolder` and `RandomResizedCrop` do, with Pillow.

    By hand: torchvision's wheel does not load beside a torch that is made for CPUs.
    """
    import math
    import random

    import numpy as np
    import torch
    from PIL import Image

    class Images(torch.utils.data.Dataset):
        def __init__(self):
            folders = sorted(path for path in (root / "train").iterdir())
            self.samples = [
                (path, label) for label, folder in enumerate(folders) for path in folder.iterdir()
            ]

        def __len__(self):
            return len(self.samples)

        def __getitem__(self, index):
            path, label = self.samples[index]
            with path.open("rb") as file:
                image = Image.open(file).convert("RGB")
            image = image.crop(random_box(*image.size)).resize((SIZE, SIZE), Image.BILINEAR)
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            return torch.from_numpy(np.asarray(image).copy()), label

    def random_box(width, height):
        for _ in range(10):
            pixels = width * height * random.uniform(0.05, 1.0)
            ratio = math.exp(random.uniform(math.log(0.75), math.log(1.33)))
            wide, high = round(math.sqrt(pixels * ratio)), round(math.sqrt(pixels / ratio))
            if 0 < wide <= width and 0 < high <= height:
                left, top = random.randint(0, width - wide), random.randint(0, height - high)
                return left, top, left + wide, top + high
        return 0, 0, width, height

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(
        Images(), BATCH, shuffle=True, num_workers=cores, drop_last=True, persistent_workers=True
    )
    while True:
        yield from loader


PIPELINES = {
    "convoy": lambda root, cores: convoy_batches(root / "shards", cores),
    "convoy-folder": lambda root, cores: convoy_batches(root / "folder", cores),
    "tf.data": lambda root, cores: tf_data(root / "shards", cores),
    "torch": lambda root, cores: torch_loader(root / "folder", cores),
}


def main() -> None:
    name, root, cores = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    batches = PIPELINES[name](root, cores)
    images, _ = next(batches)
    assert tuple(images.shape) == (BATCH, SIZE, SIZE, 3), images.shape
    assert "uint8" in str(images.dtype), images.dtype
    print("ready", flush=True)
    for line in sys.stdin:
        for _ in range(AHEAD):
            next(batches)
        began, done = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < float(line):
            next(batches)
            done += BATCH
        print(done / elapsed, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
