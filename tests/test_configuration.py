from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import pytest
from convoy.configuration import (
    Configuration,
    ConfigurationError,
    Count,
    ExactFraction,
    Option,
    Parameters,
    Whole,
    add_flags,
    check,
    options,
    override,
    read,
    read_yaml,
)
from convoy_command.parser import Parser


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


@dataclass(frozen=True)
class Data(Configuration):
    """A schema in another.

    Attributes:
        folder: folder

    data:
        n_train: samples
    """

    n_train: Annotated[Count, Option(aliases=("samples",))]
    shape: tuple[Whole, ...] = (4,)
    folder: Annotated[Path, Option()] = Path(".")


@dataclass(frozen=True)
class Run(Configuration):
    """A schema with some fields that are flags.

    Attributes:
        model: network
        training: train
        schedule: learning rate
        parameters: its parameters
        splits: layers
        logs: logs per epoch
    """

    data: Data
    model: Annotated[str, Option(aliases=("model-name",))] = "toy"
    training: Annotated[bool, Option()] = True
    schedule: Annotated[str, Option(choices=("const", "cosine"))] = "const"
    parameters: Annotated[Parameters, Option()] = field(default_factory=dict)
    splits: Annotated[list[str], Option()] = field(default_factory=list)
    logs: Annotated[ExactFraction | None, Option()] = None
    others: dict[str, Data] = field(default_factory=dict)

    def __post_init__(self):
        if self.model == "none":
            raise ValueError("There is no model.")


@dataclass(frozen=True)
class Described(Configuration, all_flags=True):
    """Fields that are flags without an `Option`.

    first group:
        rate: learning rate,
            at the first step
        kind: one of some

    second group:
        count: how many
    """

    rate: float = 0.1
    kind: Literal["ON", "off"] | None = None
    count: Annotated[Count, Option(aliases=("number",))] = 1


def run(**values):
    return read(Run, {"data": {"n_train": 1}} | values)


def from_flags(words, file=None):
    parser = Parser(prog="run")
    add_flags(parser, Run)
    return read(Run, override(file or {}, vars(parser.parse_args(words.split()))), flags=True)


def test_strings_become_values_of_the_type_of_their_field():
    made = run(training="T", logs="1/49", schedule="Cosine", parameters="{rate: 1e-5}")
    assert made.training is True
    assert made.logs == Fraction(1, 49)
    assert made.schedule == "cosine"
    assert made.parameters == {"rate": 1e-5}
    assert read(Data, {"n_train": "3", "shape": [1, 2]}) == Data(3, (1, 2))


def test_numbers_in_a_file_may_stand_for_strings():
    assert run(model=16.16).model == "16.16"


def test_keys_may_have_dashes_and_aliases_at_every_level():
    made = run(**{"model-name": "x", "data": {"samples": 2}, "others": {"a": {"n-train": 3}}})
    assert (made.model, made.data.n_train, made.others["a"].n_train) == ("x", 2, 3)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"modle": 3}, "modle is unknown. Did you mean model?"),
        ({"zzz": 3}, "zzz is unknown. Known: data, logs, model, others"),
        ({"data": {"n-trian": 3}}, "data.n-trian is unknown. Did you mean n-train?"),
        ({"others": {"a": {"n_trian": 3}}}, "others.a.n_trian is unknown. Did you mean n_train?"),
        ({"data": {}}, "data.n_train is missing. Add it."),
        ({"data": 3}, "data: 3 is not a section with keys and values."),
        ({"data": {"n_train": "many"}}, "data.n_train: 'many' is not a whole number."),
        ({"data": {"n_train": True}}, "data.n_train: True is not a whole number."),
        ({"data": {"n_train": 1.5}}, "data.n_train: 1.5 is not a whole number."),
        ({"data": {"n_train": 0}}, "data.n_train 0: pass 1 or more."),
        ({"data": {"n_train": 1, "shape": 64}}, "data.shape: 64 is not a list."),
        ({"training": "perhaps"}, "training: 'perhaps' is neither true nor false."),
        ({"schedule": "cosin"}, "'cosin' is not one of const, cosine. Did you mean cosine?"),
        ({"logs": "1/0"}, "logs: '1/0' is not a number. Pass one, or a fraction such as 1/2."),
        ({"parameters": "rate"}, "parameters: 'rate' is not a dictionary. Pass for example"),
        ({"model": "none"}, "There is no model."),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_key(values, problem):
    with pytest.raises(ConfigurationError) as error:
        read(Run, {"data": {"n_train": 1}} | values, "some.yaml: ")
    assert str(error.value).startswith("some.yaml: ")
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_flags_come_from_the_fields_and_override_a_file():
    words = "--model-name x --samples 3 --training --parameters {a:1} --splits a b --folder f"
    made = from_flags(words, {"data": {"n_train": 1, "shape": [8]}, "training": False})
    assert (made.model, made.training, made.splits) == ("x", True, ["a", "b"])
    assert made.data == Data(3, (8,), Path("f"))
    assert not from_flags("--n-train 1 --training False").training


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--n-train many", "--n-train: 'many' is not a whole number."),
        ("--n-train 0", "--n-train 0: pass 1 or more."),
        ("--n-train 1 --schedule x", "--schedule: 'x' is not one of const, cosine."),
    ],
)
def test_a_wrong_flag_is_named_as_a_flag(words, problem):
    with pytest.raises(ConfigurationError) as error:
        from_flags(words)
    assert str(error.value) == problem


def test_help_has_groups_aliases_and_defaults(capsys):
    parser = Parser(prog="run")
    add_flags(parser, Run, run())
    parser.print_help()
    shown = capsys.readouterr().out
    assert re.search(r"--n-train( N)?, --samples N", shown)  # as of Python 3.13 only once
    assert "data:\n" in shown
    assert "network (default: toy)" in shown
    assert "--schedule {const,cosine}" in shown


def test_a_docstring_describes_the_flags_of_a_schema_in_groups(capsys):
    parser = Parser(prog="run")
    add_flags(parser, Described, Described())
    parser.print_help()
    shown = capsys.readouterr().out
    assert "learning rate, at the first step (default: 0.1)" in shown
    assert "--kind {ON,off}" in shown
    assert shown.index("first group:") < shown.index("learning rate") < shown.index("second group:")
    aliases = re.search(r"--count( N)?, --number N", shown)
    assert aliases is not None
    assert shown.index("second group:") < aliases.start()


def test_literals_are_accepted_in_any_case():
    assert [read(Described, {"kind": kind}).kind for kind in ("on", "OFF", None)] == [
        *("ON", "off"),
        None,
    ]
    with pytest.raises(
        ConfigurationError, match=r"^kind: 'of' is not one of ON, off\. Did you mean"
    ):
        read(Described, {"kind": "of"})


@dataclass(frozen=True)
class Spelled(Configuration):
    """Values with other spellings."""

    where: Annotated[
        Literal["host", "device"] | None, Option(synonyms={"cpu": "host", "ipu": "device"})
    ] = None
    order: Annotated[str, Option(choices=("1f1b", "gpipe"), synonyms={"grouped": "gpipe"})] = "1f1b"


@pytest.mark.parametrize(
    ("value", "meaning"), [("cpu", "host"), ("IPU", "device"), ("Host", "host"), (None, None)]
)
def test_a_synonym_stands_for_a_value_in_any_case(value, meaning):
    assert read(Spelled, {"where": value}).where == meaning
    assert read(Spelled, {"order": "Grouped"}).order == "gpipe"


def test_an_unknown_value_is_answered_with_the_values_and_not_with_their_synonyms():
    with pytest.raises(ConfigurationError, match=r"'disk' is not one of host, device\.$"):
        read(Spelled, {"where": "disk"})


def test_options_are_found_by_field():
    assert options(Run)["model"].aliases == ("model-name",)
    assert "n_train" not in options(Run)


def test_a_configuration_made_in_python_can_be_checked():
    check(Data(1))
    with pytest.raises(ConfigurationError, match="--n-train 0: pass 1 or more"):
        check(Data(0))


def test_a_file_that_is_no_mapping_is_named(tmp_path):
    path = tmp_path / "some.yaml"
    for text, problem in (("- 1", "is not a mapping"), ("a: [", "is not YAML")):
        path.write_text(text)
        with pytest.raises(ConfigurationError, match=rf"some\.yaml {problem}"):
            read_yaml(path)
    with pytest.raises(ConfigurationError, match=r"none\.yaml cannot be read: No such file"):
        read_yaml(tmp_path / "none.yaml")


def test_numbers_in_yaml_may_be_written_as_in_json(tmp_path):
    path = tmp_path / "some.yaml"
    path.write_text("rate: 1e-5")
    assert read_yaml(path) == {"rate": 1e-5}
