import json

import numpy as np
import pytest
from convoy.checkpoint import DamagedError, store, tensors

from .conftest import FIRST, content


def test_an_array_file_is_what_the_safetensors_format_says(folder):
    data = (folder.at(FIRST) / store.ARRAYS).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    entry = header["trainable/0/kernel"]
    assert (entry["dtype"], entry["shape"]) == ("F32", [3, 5])
    begin, end = entry["data_offsets"]
    found = np.frombuffer(data[8 + length :][begin:end], "<f4").reshape(3, 5)
    np.testing.assert_array_equal(found, content(1).arrays["trainable/0/kernel"])
    assert length % 8 == 0


# Damage ---------------------------------------------------------------------------------------


def test_arrays_of_every_type_come_back(tmp_path):
    arrays = {str(dtype): np.ones((2, 3), dtype) for dtype in tensors._TYPES.values()}
    checksums = tensors.write(tmp_path / "arrays", arrays)
    found = dict(tensors.read(tmp_path / "arrays", checksums))
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_a_header_that_claims_gigabytes_is_not_allocated(tmp_path):
    (tmp_path / "arrays").write_bytes((1 << 60).to_bytes(8, "little"))
    with pytest.raises(DamagedError, match="the checksum of its header is wrong"):
        list(tensors.read(tmp_path / "arrays", {"": "none"}))
