from convoy.serving.protocol import message


def test_a_request_has_the_bytes_that_tensorflow_serving_reads():
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = "half"
    request.model_spec.version.value = 3
    request.model_spec.signature_name = "serving_default"
    request.inputs["x"].dtype = 1
    request.inputs["x"].tensor_shape.dim.add(size=1)
    request.inputs["x"].float_val.append(2.0)
    # Written down by hand from the published numbers of the fields.
    spec = b"\x0a\x04half" + b"\x12\x02\x08\x03" + b"\x1a\x0fserving_default"
    tensor = b"\x08\x01" + b"\x12\x04\x12\x02\x08\x01" + b"\x2a\x04\x00\x00\x00\x40"
    entry = b"\x0a\x01x" + b"\x12" + bytes([len(tensor)]) + tensor
    expected = b"\x0a" + bytes([len(spec)]) + spec + b"\x12" + bytes([len(entry)]) + entry
    assert request.SerializeToString(deterministic=True) == expected


def test_a_status_has_the_bytes_that_clients_read():
    response = message("tensorflow.serving.GetModelStatusResponse")()
    entry = response.model_version_status.add(version=123, state=30)
    entry.status.error_message = "x"
    assert response.SerializeToString() == b"\x0a\x09\x08\x7b\x10\x1e\x1a\x03\x12\x01x"
