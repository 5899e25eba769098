"""From the command line and recipes to options.

The command line beats the recipe, which beats that of the run that is resumed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from convoy.flags import Flag, Loader, boolean, mapping
from convoy.train.options import FLAGS, Options
from convoy.train.run_folder import RUN, RunFolder
from convoy_command.parser import Parser, suggestion

SHIPPED = Path(__file__).with_name("configs.yml")


def make_parser(program: str = "convoy train") -> Parser:
    parser = Parser(
        prog=program,
        description="Train and validate an image classifier.",
        epilog="A first run, on digits that come with the package:\n"
        "  convoy train --model cifar_resnet8 --dataset digits --precision 32.32 \\\n"
        "      --micro-batch-size 32 --num-epochs 10\n\n"
        "The command line beats the recipe, which beats the defaults; with --resume, these are\n"
        "what the run was started with. Flags may be shortened, as long as they stay unambiguous.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups: dict[str, Any] = {}
    defaults = Options()
    for name, flag in FLAGS.items():
        if flag.group not in groups:
            groups[flag.group] = parser.add_argument_group(flag.group)
        group = groups[flag.group]
        default = getattr(defaults, name.replace("-", "_"))
        shown = "" if default in (None, []) else f" (default: {default})"
        settings: dict[str, Any] = {
            "type": _reader(flag),
            "help": (flag.help + shown).replace("%", "%%"),
            "default": argparse.SUPPRESS,
            "dest": name.replace("-", "_"),
            "metavar": "{" + ",".join(flag.choices) + "}" if flag.choices else _metavar(flag),
        }
        if flag.many:
            settings["nargs"] = "+"
        elif flag.read is boolean:
            settings |= {"nargs": "?", "const": True}
        action = group.add_argument(f"--{name}", **settings)
        if name == "config":
            # Shown by shells; another file has others.
            action.words = list(_recipes(SHIPPED))
    return parser


def parse(words: Sequence[str], program: str = "convoy train") -> Options:
    """Return the options of a command line; ends the program if it cannot be understood."""
    parser = make_parser(program)
    given = vars(parser.parse_args(words))
    try:
        earlier = _recipe_of_run(given)
        recipe = read_recipe(given.get("config"), given.get("config_path"))
    except ValueError as error:
        parser.error(str(error))
    return Options(**(earlier | recipe | given))


def _recipe_of_run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the run that is to be resumed, if there is one."""
    if not given.get("resume") or given.get("output_dir") is None:
        return {}
    file = RunFolder(Path(given["output_dir"])).recipe
    return read_recipe(RUN, str(file)) if file.exists() else {}


def read_recipe(name: str | None, path: str | None) -> dict[str, Any]:
    """Return the values of a recipe, by the names of the fields of `Options`.

    Raises:
        ValueError: if there is no such file or recipe, or something in it is not a flag or not a
            value of that flag.
    """
    if name is None:
        if path is not None:
            raise ValueError(
                f"--config-path {path} was given without --config. Pass --config and one of: "
                f"{', '.join(_recipes(Path(path)))}"
            )
        return {}
    file = SHIPPED if path is None else Path(path)
    recipes = _recipes(file)
    if name not in recipes:
        raise ValueError(
            f"{name!r} is not a recipe of {file.name}{suggestion(name, recipes)} "
            f"It has: {', '.join(recipes)}"
        )
    values = {}
    for key, value in recipes[name].items():
        flag_name = _resolve(str(key), f"recipe {name!r}")
        values[flag_name.replace("-", "_")] = _value(FLAGS[flag_name], flag_name, value)
    return values


def _recipes(file: Path) -> dict[str, dict[str, Any]]:
    try:
        content = yaml.load(file.read_text(), Loader=Loader)
    except OSError as error:
        raise ValueError(f"--config-path {file} cannot be read: {error.strerror}.") from None
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        raise ValueError(f"The recipe file {file} is not YAML: {line}") from None
    if not isinstance(content, dict):
        raise ValueError(f"The recipe file {file} does not map names to recipes.")
    return {name: entry for name, entry in content.items() if isinstance(entry, dict)}


def _resolve(key: str, where: str) -> str:
    """Return the flag that a recipe's key means; it may be shortened as on the command line."""
    key = key.replace("_", "-")
    if key in FLAGS:
        return key
    longer = {name for name in FLAGS if name.startswith(key)}
    if len(longer) == 1:
        return longer.pop()
    problem = f"is short for {' and '.join(sorted(longer))}" if longer else "is not a flag"
    raise ValueError(f"{key!r} in {where} {problem}{suggestion(key, FLAGS)}")


def _value(flag: Flag, name: str, value: Any) -> Any:
    """Read a recipe's value as if it stood on the command line."""
    if flag.many:
        return [_read(flag, name, item) for item in (value if isinstance(value, list) else [value])]
    if value is None or isinstance(value, dict):
        if value is None or flag.read is mapping:
            return value
        raise ValueError(f"--{name}: a dictionary was given in the recipe; pass one value")
    return _read(flag, name, value)


def _read(flag: Flag, name: str, value: Any) -> Any:
    word = os.path.expandvars(value) if isinstance(value, str) else str(value)
    try:
        return _reader(flag)(word)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"argument --{name}: {error}") from None


def _reader(flag: Flag) -> Any:
    def read(word: str) -> Any:
        in_any_case = {choice.lower(): choice for choice in flag.choices}
        if flag.choices and word.lower() not in in_any_case:
            near = suggestion(word, flag.choices)
            raise argparse.ArgumentTypeError(
                f"{word!r} is not one of {', '.join(flag.choices)}{near}"
            )
        try:
            return flag.read(in_any_case.get(word.lower(), word))
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _metavar(flag: Flag) -> str:
    return {"whole": "N", "number": "X", "boolean": "BOOL", "fraction": "X"}.get(
        flag.read.__name__, flag.read.__name__.upper()
    )


def as_recipe(options: Options) -> Mapping[str, Any]:
    """Return options as the mapping that a recipe file holds, without those of one command only."""
    plain: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name in ("config", "config_path", "resume") or value is None:
            continue
        known = isinstance(value, (bool, int, float, str, list, dict))
        plain[field.name.replace("_", "-")] = value if known else str(value)
    return plain
