import keras
import pytest
from convoy import ipu


def test_a_seed_begins_all_random_numbers():
    ipu.utils.reset_ipu_seed(7)
    first = keras.random.uniform((2,))
    ipu.utils.reset_ipu_seed(7)
    assert (first == keras.random.uniform((2,))).all()
    with pytest.raises(NotImplementedError, match=r"identical_replicas is not supported\. L"):
        ipu.utils.reset_ipu_seed(7, experimental_identical_replicas=True)
    ipu.utils.move_variable_initialization_to_cpu()
    assert not ipu.utils.running_on_ipu_model()
