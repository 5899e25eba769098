"""Errors of the system and of other libraries in one line."""

import asyncio
import errno
import socket

import keras
import numpy as np
import pytest
from convoy.error_messages import MAX_NAMES, first_line, first_names, system_reason


def test_the_first_line_of_an_error_or_its_type():
    assert first_line(ValueError("\nno such file\nmore")) == "no such file"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"


class _Failing(keras.layers.Layer):
    def call(self, inputs):
        raise ValueError("this layer fails\nin two lines")


def test_the_reason_of_an_error_in_a_layer_follows_the_line_about_the_layer():
    with pytest.raises(ValueError, match="Exception encountered when calling") as raised:
        _Failing()(np.zeros((1, 2), "float32"))
    assert "\x1b[" in str(raised.value)
    assert first_line(raised.value) == "this layer fails"


def test_the_reason_of_an_error_of_a_saved_layer_ends_the_message():
    config = keras.saving.serialize_keras_object(keras.layers.Dense(2))
    config["config"]["units"] = -1
    with pytest.raises(TypeError, match="Exception encountered: ") as raised:
        keras.saving.deserialize_keras_object(config)
    assert first_line(raised.value).startswith("Received an invalid value for `units`")


def test_the_reason_of_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError) as raised:
        (tmp_path / "absent").read_bytes()
    assert system_reason(raised.value) == "No such file or directory"


def test_the_reason_of_asyncio_does_not_repeat_the_address():
    async def listen(port):
        await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", port)

    with socket.create_server(("127.0.0.1", 0)) as used, pytest.raises(OSError) as raised:  # noqa: PT011
        asyncio.run(listen(used.getsockname()[1]))
    assert "127.0.0.1" in str(raised.value)
    assert system_reason(raised.value) == "Address already in use"


def test_the_reason_of_a_name_that_cannot_be_resolved_is_that_of_the_resolver():
    error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert system_reason(error) == "Name or service not known"
    # On some systems, the resolver's numbers are those of other errors.
    assert system_reason(socket.gaierror(errno.EPERM, "No such host")) == "No such host"


def test_an_error_without_a_number_has_its_own_text_as_the_reason():
    assert system_reason(OSError("the disk is gone\nmore")) == "the disk is gone"
    with pytest.raises(UnicodeDecodeError) as raised:
        b"\xff".decode()
    assert "can't decode byte 0xff" in system_reason(raised.value)


def test_a_long_list_of_names_is_cut():
    names = [f"name{number}" for number in range(MAX_NAMES + 1)]
    assert first_names(names[:2]) == "name0, name1"
    assert first_names(names) == ", ".join(names[:-1]) + ", ..."
