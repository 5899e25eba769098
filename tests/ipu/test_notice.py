from convoy.ipu import notice


def test_a_message_is_logged_once(caplog):
    for _ in range(2):
        notice.once("something")
    assert [record.message for record in caplog.records] == ["something"]


def test_names_the_options_that_are_set(caplog):
    notice.no_effect("here", {"a": None, "b": False, "c": 0})
    assert not caplog.records
    notice.no_effect("here", {"b": True, "a": "word", "c": None})
    (record,) = caplog.records
    assert record.message == "No effect on these devices, and ignored in here: a, b."
