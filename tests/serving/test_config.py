import pytest
from convoy.serving.config import read_config
from convoy.serving.versions import VersionPolicy


def test_models_of_a_file_have_paths_policies_and_labels(tmp_path):
    file = tmp_path / "models.yml"
    file.write_text(
        "models:\n"
        "  a: {path: a}\n"
        "  b: {path: /b, versions: all, labels: {stable: 1}}\n"
        "  c: {path: c, versions: [1, 2]}\n"
        "  d: {path: d, versions: 2}\n"
    )
    found = read_config(file)
    assert [str(config.path) for config in found] == [
        str(tmp_path / "a"),
        "/b",
        *(str(tmp_path / n) for n in "cd"),
    ]
    assert [c.policy for c in found] == [
        VersionPolicy(),
        VersionPolicy(0),
        VersionPolicy(specific=(1, 2)),
        VersionPolicy(2),
    ]
    assert found[1].labels == {"stable": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("models: []", r"models: \[\] is not a section with keys and values"),
        ("models: {a: 1}", r"models\.a: 1 is not a section with keys and values"),
        ("models: {a: {}}", r"models\.a\.path is missing"),
        ("models: {a: {path: a, versions: x}}", "'x' is neither `all`, nor a number"),
        ("models: {a: {path: a, versions: 0}}", "0 is neither `all`, nor a number"),
        ("models: {a: {path: a, labels: {stable: b}}}", "'b' is not a whole number"),
        ("models: {a: {path: a, version: 1}}", r"a\.version is unknown. Did you mean versions"),
        ("models: {", "is not YAML"),
    ],
)
def test_a_file_that_is_not_valid_is_refused_with_the_reason(tmp_path, content, message):
    file = tmp_path / "models.yml"
    file.write_text(content)
    with pytest.raises(ValueError, match=rf"models\.yml.*{message}"):
        read_config(file)
