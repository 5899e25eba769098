"""Exchange of host values; between several processes it is tested in `cli/test_launch.py`."""

import numpy as np
from convoy import distributed


def test_a_process_alone_gets_its_own_values_back():
    assert distributed.from_first({"a": 1}) == {"a": 1}
    assert distributed.from_all("x") == ["x"]
    assert distributed.any_of([True, False]) == [True, False]
    assert distributed.who_has([True, False]) == [[0], []]
    assert distributed.gathered(np.ones(2)).tolist() == [[1, 1]]
    assert [total.tolist() for total in distributed.totals([np.ones(2)])] == [[1, 1]]
