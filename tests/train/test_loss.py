import keras
import numpy as np
import pytest
from convoy.train.loss import SmoothedCrossentropy, make_accuracy, make_loss

pytestmark = pytest.mark.integration


@pytest.fixture
def predicted(rng):
    labels = np.array([0, 2, 1, 2], "int32")
    return labels, np.asarray(keras.ops.softmax(rng.normal(size=(4, 3)).astype("float32")))


def test_without_smoothing_it_is_the_plain_loss(predicted):
    plain = keras.losses.SparseCategoricalCrossentropy()(*predicted)
    for smoothing in (None, 0.0):
        assert float(make_loss(smoothing, probabilities=False)(*predicted)) == float(plain)


def test_smoothing_gives_every_class_a_share(predicted):
    labels, probabilities = predicted
    shares = np.eye(3)[labels] * 0.7 + 0.1
    expected = -(shares * np.log(probabilities)).sum(1).mean()
    loss = make_loss(0.3, probabilities=False)
    assert float(loss(labels, probabilities)) == pytest.approx(expected, rel=1e-5)
    assert float(loss(labels[:, None], probabilities)) == pytest.approx(expected, rel=1e-5)
    mixed = make_loss(0.3, probabilities=True)
    assert float(mixed(np.eye(3)[labels], probabilities)) == pytest.approx(expected, rel=1e-5)


def test_a_probability_of_zero_is_not_infinite():
    loss = make_loss(0.1, probabilities=False)(np.array([0]), np.array([[0.0, 1.0]], "float32"))
    assert np.isfinite(float(loss))


def test_accuracy_of_numbers_and_of_shares(predicted):
    labels, probabilities = predicted
    expected = (probabilities.argmax(1) == labels).mean()
    for shares, y in ((False, labels), (True, np.eye(3)[labels])):
        metric = make_accuracy("a", probabilities=shares)
        metric.update_state(y, probabilities)
        assert float(metric.result()) == pytest.approx(expected)


def test_smoothing_beyond_1_is_refused_and_the_loss_survives_saving():
    with pytest.raises(ValueError, match=r"--label-smoothing 1\.5"):
        make_loss(1.5, probabilities=False)
    assert SmoothedCrossentropy.from_config(SmoothedCrossentropy(0.2).get_config()).smoothing == 0.2
