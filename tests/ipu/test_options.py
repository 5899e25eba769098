import numpy as np
import pytest
from convoy import ipu


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("auto_select_ipus", True),
        ("auto_select_ipus", np.int64(2)),
        ("auto_select_ipus", [1, True]),
        ("auto_select_ipus", "2"),
        ("allow_recompute", 1),
        ("io_tiles.num_io_tiles", True),
        ("io_tiles.available_memory_proportion", 1),
        ("floating_point_behaviour.esr", True),
        ("selection_order", 2),
        ("convolutions.poplar_options", {"availableMemoryProportion": 0.6}),
    ],
)
def test_refuses_values_of_another_type(path, value):
    config = ipu.config.IPUConfig()
    *categories, name = path.split(".")
    place = config
    for category in categories:
        place = getattr(place, category)
    with pytest.raises(TypeError, match=path):
        setattr(place, name, value)


def test_says_what_is_deprecated(caplog):
    ipu.config.IPUConfig().optimizations.enable_fast_math = True
    assert "Use optimizations.math.fast" in caplog.text
