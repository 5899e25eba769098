import base64
import json

import cv2
import numpy as np
import pytest
from convoy.data.image_files import Folder
from convoy.report.files import CLASSIFICATION
from convoy.train.mistakes import MAX_MISTAKES, write_classification

LABELS = np.array([0, 0, 1, 2, 2], np.int32)
PROBABILITIES = np.array(
    [[0.9, 0.1, 0.0], [0.3, 0.7, 0.0], [0.2, 0.8, 0.0], [0.6, 0.4, 0.0], [0.0, 0.0, 1.0]]
)


def written(folder, images, probabilities=PROBABILITIES, names=("a", "b", "c")):
    write_classification(folder, images, probabilities, names)
    file = folder / CLASSIFICATION
    return json.loads(file.read_text()) if file.exists() else None


def picture_in(url):
    data = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)


@pytest.fixture
def images(rng):
    return rng.integers(0, 256, (5, 4, 6, 3)).astype(np.uint8), LABELS


def test_rows_of_the_matrix_are_classes_and_columns_predictions(tmp_path, images):
    content = written(tmp_path, images)
    assert content["class_names"] == ["a", "b", "c"]
    assert content["matrix"] == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]


def test_the_most_certain_mistake_is_first_and_has_its_picture(tmp_path, images):
    first, second = written(tmp_path, images)["mistakes"]
    assert (first["name"], first["label"], first["predicted"]) == ("image 1", 0, 1)
    assert (first["probability"], second["probability"]) == (0.7, 0.6)
    np.testing.assert_array_equal(picture_in(first["picture"]), images[0][1][..., ::-1])


def test_large_files_are_made_smaller_and_keep_their_ratio(tmp_path):
    for number in range(5):
        cv2.imwrite(str(tmp_path / f"{number}.jpg"), np.full((300, 600, 3), 50, np.uint8))
    names = tuple(f"{number}.jpg" for number in range(5))
    content = written(tmp_path, Folder(tmp_path, names, LABELS, ("a", "b", "c")))
    assert content["mistakes"][0]["name"].endswith("1.jpg")
    assert picture_in(content["mistakes"][0]["picture"]).shape == (56, 112, 3)


def test_only_some_mistakes_are_kept(tmp_path):
    images = np.zeros((50, 2, 2, 1), np.uint8), np.zeros(50, np.int32)
    content = written(tmp_path, images, np.tile([0.4, 0.6], (50, 1)), ())
    assert len(content["mistakes"]) == MAX_MISTAKES
    assert content["class_names"] == ["0", "1"]


def test_too_many_classes_do_not_fit_on_a_page(tmp_path):
    images = np.zeros((2, 2, 2, 1), np.uint8), np.zeros(2, np.int32)
    assert written(tmp_path, images, np.full((2, 101), 1 / 101), ()) is None
