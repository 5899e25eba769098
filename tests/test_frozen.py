import pytest
from tests.frozen import Frozen


def test_a_changed_text_is_shown_with_the_command_that_accepts_it(tmp_path):
    Frozen(update=True, folder=tmp_path)("names", "one\ntwo")
    frozen = Frozen(update=False, folder=tmp_path)
    frozen("names", "one\ntwo\n")
    with pytest.raises(AssertionError, match=r"(?s)make freeze.*-two\n\+three"):
        frozen("names", "one\nthree")


def test_a_missing_file_is_a_difference(tmp_path):
    with pytest.raises(AssertionError, match=r"\+one"):
        Frozen(update=False, folder=tmp_path)("names", "one")
