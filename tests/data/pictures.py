"""Small images in folders by class."""

import cv2
import numpy as np

CLASSES = ("n01", "n02", "n03")
COLOURS = np.array([(200, 30, 30), (30, 200, 30), (30, 30, 200)])
TRAIN, TEST = 4, 2


def make_image(label, height=60, width=80, seed=0):
    """Return noise around the colour of a class."""
    noise = np.random.default_rng(seed).integers(-20, 20, (height // 4, width // 4, 3))
    small = (COLOURS[label] + noise).clip(0, 255).astype("uint8")
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def encode(image, ending=".jpg"):
    return cv2.imencode(ending, image[..., ::-1])[1].tobytes()


def write_folders(root):
    """Write folders `train` and `val`, with 4 and 2 images for each of three classes."""
    for split, count in (("train", TRAIN), ("val", TEST)):
        for label, name in enumerate(CLASSES):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                data = encode(make_image(label, 60 + 8 * number, 80, seed=number))
                (folder / f"{name}_{number}.JPEG").write_bytes(data)
    return root
