"""Typed configuration: one schema for command-line flags and for YAML files.

A schema is a frozen dataclass. Its types decide which values are valid, and `Option` describes
those of its fields that are flags. The docstring of the class has their help texts, in a section
for each group of flags:

    @dataclass(frozen=True)
    class Training(Configuration):
        '''The configuration of a run.

        Attributes:
            model: name of the network

        training:
            epochs: passes over the data
        '''

        model: Annotated[str, Option(aliases=("model-name",))]
        epochs: Annotated[Count, Option()] = 1

    parser = Parser(prog="train.py")
    add_flags(parser, Training)
    flags = vars(parser.parse_args(words))
    training = read(Training, read_yaml(path) | flags, flags=True)

In a schema with `all_flags=True` every field is a flag. Flags under `Attributes:` have no group.

A schema may contain other schemas. `add_flags` adds flags for their fields too, and `override`
puts the given ones into the nested values of a file.
"""  # noqa: D214 - the docstring of an example

import argparse
import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import yaml
from convoy.error_messages import system_reason
from convoy_command.parser import Parser, not_one_of, one_line, suggestion
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

T = TypeVar("T", bound="Configuration")

# The ends of messages of the form "name: value ...", by pydantic's names for the errors.
_PROBLEMS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "is not a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "is not a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "is neither true nor false"),
    **dict.fromkeys(("list_type", "tuple_type"), "is not a list"),
    **dict.fromkeys(("dict_type", "dataclass_type"), "is not a section with keys and values"),
    "string_type": "is not a string",
    "finite_number": "is not a finite number",
}
# What to pass instead, for a number outside of its range.
_RANGES = {
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "{le:g} or less",
    "less_than": "less than {lt:g}",
}


class Configuration:
    """Base class of schemas: refuses unknown keys, and accepts aliases and `-` for `_` in keys.

    Subclass arguments:
        all_flags: whether each field is a flag, also without an `Option`.
    """

    _all_flags: ClassVar[bool] = False
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    def __init_subclass__(cls, *, all_flags: bool = False) -> None:
        cls._all_flags = all_flags or cls._all_flags

    @model_validator(mode="before")
    @classmethod
    def _field_names(cls, values: object) -> object:
        """Replace keys by the names of their fields, and choices by their exact spelling."""
        if not isinstance(values, Mapping):
            return values
        keys = accepted_keys(cast(Any, cls))
        for key in map(str, values):
            if key.replace("-", "_") not in keys:
                raise PydanticCustomError("unknown_key", "{key}", {"key": key, "schema": cls})
        named = {keys[str(key).replace("-", "_")]: value for key, value in values.items()}
        for name, choices in _literals(cast(Any, cls)).items():
            if isinstance(value := named.get(name), str):
                named[name] = next((c for c in choices if c.lower() == value.lower()), value)
        return named


@dataclasses.dataclass(frozen=True)
class Option:
    """The properties of a field as a command-line flag.

    Attributes:
        aliases: other names of the flag, without dashes in front.
        choices: valid values, if only some are; upper and lower case are not distinguished.
        synonyms: other spellings of values, in lower case, and the values that they stand for.
        no_effect: the reason why the flag changes nothing, if it is only accepted.
    """

    aliases: tuple[str, ...] = ()
    choices: Iterable[object] = ()
    synonyms: Mapping[str, str] = dataclasses.field(default_factory=dict)
    no_effect: str = ""

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        schema = handler(source)
        if self.choices:
            schema = core_schema.no_info_after_validator_function(self._choose, schema)
        if self.synonyms:
            schema = core_schema.no_info_before_validator_function(self._replace, schema)
        return schema

    def _replace(self, value: object) -> object:
        return self.synonyms.get(str(value).lower(), value)

    def _choose(self, value: object) -> object:
        known = {str(choice).lower(): choice for choice in self.choices}
        if value is None or str(value).lower() in known:
            return known.get(str(value).lower())
        raise ValueError(not_one_of(value, map(str, self.choices)))


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticCustomError("int_type", "a boolean")
    return value


def _fraction(value: object) -> Fraction:
    try:
        parts = [Fraction(part.strip()) for part in str(value).split("/")]
        if len(parts) > 2:
            raise ValueError
        return parts[0] if len(parts) == 1 else parts[0] / parts[1]
    except (ValueError, ZeroDivisionError):
        raise ValueError(
            f"{value!r} is not a number. Pass one, or a fraction such as 1/2."
        ) from None


def _parsed_mapping(value: object) -> Mapping[str, Any]:
    if isinstance(value, str):
        with contextlib.suppress(yaml.YAMLError):
            value = yaml.load(value, Loader=YamlLoader)
    if isinstance(value, Mapping):
        return value
    raise ValueError(f"{value!r} is not a dictionary. Pass for example '{{\"momentum\": 0.9}}'.")


Whole = Annotated[int, BeforeValidator(_no_boolean)]
WholeNotNegative = Annotated[Whole, Field(ge=0)]
Count = Annotated[Whole, Field(ge=1)]
Port = Annotated[WholeNotNegative, Field(le=65535)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ExactFraction = Annotated[Fraction, BeforeValidator(_fraction)]
"""A number, or two with a slash between them; `1/3` stays exact."""
Parameters = Annotated[dict[str, Any], BeforeValidator(_parsed_mapping)]
"""A mapping; on the command line, a string in YAML or JSON."""


class ConfigurationError(ValueError):
    """A value that a schema does not accept, described in one line."""


def read(schema: type[T], values: Mapping[str, Any], where: str = "", *, flags: bool = False) -> T:
    """Make a configuration of the values of a file, or of flags.

    Args:
        schema: class of the configuration.
        values: values by field name or alias; strings are converted to the type of their field.
        where: beginning of the error message, such as the name of the file.
        flags: whether error messages name fields as flags, `--like-this`.

    Raises:
        ConfigurationError: if a key is unknown or missing, or a value has the wrong type.
    """
    adapter: TypeAdapter[T] = _adapter(cast(Any, schema))
    try:
        return adapter.validate_python(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ConfigurationError(where + _describe(problem, flags)) from None


def check(configuration: Configuration) -> None:
    """Check the values of a configuration that was constructed in Python.

    Raises:
        ConfigurationError: as `read`.
    """
    read(type(configuration), vars(configuration), flags=True)


@functools.cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def _describe(problem: ErrorDetails, flags: bool) -> str:
    kind, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    places = [str(place) for place in problem["loc"]]
    fields = [place for place in problem["loc"] if isinstance(place, str)]
    name = flag_name(fields[-1]) if flags and fields else ".".join(places)
    if kind == "unknown_key":
        key = context["key"]
        known = sorted(set(accepted_keys(context["schema"]).values()))
        if "-" in key:
            known = [name.replace("_", "-") for name in known]
        near = suggestion(key, known)
        listed = f". Known: {', '.join(known)}." if near == "." else near
        return f"{'.'.join([*places, key])} is unknown{listed}"
    if kind == "missing":
        return f"{name} is missing. {'Pass' if flags else 'Add'} it."
    if kind in _RANGES:
        return f"{name} {value}: pass {_RANGES[kind].format(**context)}."
    if kind in _PROBLEMS:
        text = f"{value!r} {_PROBLEMS[kind]}."
    elif kind == "literal_error":
        text = not_one_of(value, re.findall("'([^']*)'", context["expected"]))
    elif kind == "value_error":
        text = str(context["error"])
    else:
        text = problem["msg"]
    return f"{name}: {text}" if name else text


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file.

    Raises:
        ConfigurationError: if there is no such file, or it holds anything else.
    """
    try:
        tree = yaml.load(path.read_text(), Loader=YamlLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {system_reason(error)}. Pass another file."
        ) from None
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} is not YAML: {one_line(error)}") from None
    if not isinstance(tree, dict):
        raise ConfigurationError(f"{path} is not a mapping. Write lines of the form `key: value`.")
    return tree


class YamlLoader(yaml.SafeLoader):
    """YAML in which `1e-5` is a number, as in JSON."""


YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def add_flags(parser: Parser, schema: type[Configuration], defaults: object = None) -> None:
    """Add a flag for each field of a schema that has an `Option`, and of the schemas in it.

    Flags that are not given leave no value behind. Values stay strings, for `read` to convert.

    Args:
        parser: the parser that gets the flags.
        schema: class of the configuration.
        defaults: a configuration, or its class, whose values are shown as the defaults.
    """
    groups: dict[str, Any] = {"": parser}
    for path, option, kind, (group, help) in _options(schema):
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        default = getattr(defaults, path, None)
        shown = "" if default in (None, []) else f" (default: {default})"
        choices = [str(choice) for choice in option.choices or _literal(kind)]
        settings: dict[str, Any] = {
            "dest": path,
            "default": argparse.SUPPRESS,
            "help": (help + shown).replace("%", "%%"),
            "metavar": "{" + ",".join(choices) + "}" if choices else _metavar(kind),
        }
        if get_origin(kind) in (list, tuple):
            settings["nargs"] = "+"
        elif kind is bool:
            settings |= {"nargs": "?", "const": True}
        names = [path.rpartition(".")[2], *option.aliases]
        action = groups[group].add_argument(*map(flag_name, names), **settings)
        action.words = choices


def override(tree: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested values of a file, with flags such as `data.epochs` in their places."""
    changed = dict(tree)
    for path, value in flags.items():
        section, _, rest = path.partition(".")
        inner = changed.get(section)
        changed[section] = (
            override(inner if isinstance(inner, Mapping) else {}, {rest: value}) if rest else value
        )
    return changed


def options(schema: type[Configuration]) -> dict[str, Option]:
    """Return the options of a schema's own fields, by field name."""
    return {path: option for path, option, _, _ in _options(schema) if "." not in path}


@functools.cache
def accepted_keys(schema: Any) -> dict[str, str]:
    """Return the field that each key stands for: its name or an alias, written with `_`."""
    keys = {field.name: field.name for field in dataclasses.fields(schema)}
    for name, option in options(schema).items():
        keys |= {alias.replace("-", "_"): name for alias in option.aliases}
    return keys


@functools.cache
def _literals(schema: Any) -> dict[str, tuple[str, ...]]:
    """Return the choices of each field whose type is a `Literal`."""
    kinds = {name: _plain(hint) for name, hint in _hints(schema).items()}
    return {name: _literal(kind) for name, kind in kinds.items() if _literal(kind)}


def _literal(kind: Any) -> tuple[str, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def _hints(schema: Any) -> dict[str, Any]:
    hints = get_type_hints(schema, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(schema)}


def flag_name(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def short_flag(schema: type[Configuration], field: str) -> str:
    """Return the flag of a field, or its alias that is the end of it: `--epochs`."""
    name = flag_name(field)
    aliases = options(schema)[field.replace("-", "_")].aliases
    return next((f"--{alias}" for alias in aliases if name.endswith(f"-{alias}")), name)


def _options(
    schema: type[Configuration], path: str = ""
) -> Iterator[tuple[str, Option, Any, tuple[str, str]]]:
    """Yield path, option, type without `None`, and group and help of each field that is a flag."""
    described = _described(schema)
    for name, hint in _hints(schema).items():
        if isinstance(hint, type) and issubclass(hint, Configuration):
            yield from _options(hint, f"{path}{name}.")
            continue
        option = next((part for part in get_args(hint) if isinstance(part, Option)), None)
        if option is None and schema._all_flags:
            option = Option()
        if option is not None:
            yield f"{path}{name}", option, _plain(hint), described.get(name, ("", ""))


def _described(schema: type[Configuration]) -> dict[str, tuple[str, str]]:
    """Return the section and the text of each field that docstrings of a schema describe."""
    found: dict[str, tuple[str, str]] = {}
    section = name = ""
    docstrings = [inspect.cleandoc(base.__doc__ or "") for base in schema.__mro__]
    for line in "\n".join(docstrings).splitlines():
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text and not indent:
            section, name = text.removesuffix(":").replace("Attributes", ""), ""
        elif indent == 4 and ": " in text:
            name, _, text = text.partition(": ")
            found.setdefault(name, (section, text))
        elif text and name:
            found[name] = section, f"{found[name][1]} {text}"
    return found


def _plain(hint: Any) -> Any:
    """Return a type without its annotations, and without `None`."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if type(None) in get_args(hint):
        return _plain(get_args(hint)[0])
    return hint


def _metavar(kind: Any) -> str:
    item = _plain(get_args(kind)[0]) if get_origin(kind) in (list, tuple) else kind
    names = {int: "N", float: "X", Fraction: "X", bool: "BOOL", str: "TEXT", Path: "PATH"}
    return names.get(item, "MAPPING")
