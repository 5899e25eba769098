from convoy.native_library import installed_file


def test_a_file_of_a_distribution_is_found_by_its_name():
    path = installed_file("numpy", "version.py")
    assert path is not None
    assert path.is_file()


def test_a_missing_file_and_a_missing_distribution_are_none():
    assert installed_file("numpy", "no-such-file.so") is None
    assert installed_file("no-such-distribution", "version.py") is None
