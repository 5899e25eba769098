"""Exported models as a source of programs; `test_session.py` compiles the programs of one."""

import pytest
from convoy.compile.exported import run_exported


@pytest.mark.parametrize("name", ["nothing", "empty", "file"])
def test_a_path_without_an_exported_model_is_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=rf"{name} has no exported model: .* Pass a folder that"):
        run_exported(tmp_path / name)


def test_the_newest_version_is_read_even_if_only_older_ones_are_intact(tmp_path):
    for version in ("9", "10"):
        (tmp_path / version).mkdir()
    with pytest.raises(ValueError, match="10 is not a model that convoy export wrote"):
        run_exported(tmp_path)
