"""Recipes: named sets of options in a YAML file."""

import difflib
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from convoy.configuration import ConfigurationError, accepted_keys, read, read_yaml
from convoy.data.image_folder import FOLDER
from convoy.train.flags import Options
from convoy.train.graphcore_flags import GraphcoreOptions
from convoy.train.run_folder import RUN, RunFolder
from convoy_command.parser import suggestion

RECIPES = Path(__file__).with_name("configs.yml")
"""The recipe file of the package."""
# Without any of these flags, `--resume` is not the first start of a run.
_NEW_RUN = ("model", "dataset", "config")
_NOT_IN_RECIPES = ("config", "config_path", "resume")


def read_options(flags: Mapping[str, Any], defaults: str | None = None) -> Options:
    """Combine flags with the recipe that they name, and with the options of a run to resume.

    Args:
        flags: values of the flags that were given. They have priority over the recipe, the recipe
            over the options of the earlier run, and these over the defaults.
        defaults: name of a recipe whose values replace the defaults of `Options`.

    Raises:
        ConfigurationError: if a recipe or the run to resume does not exist, or an option is
            unknown, missing or not valid.
    """
    given = read(GraphcoreOptions, flags, flags=True)
    earlier = read_recipe(defaults, RECIPES if defaults else None)
    if given.resume and given.output_dir is not None:
        folder = RunFolder(Path(given.output_dir))
        if folder.recipe.exists():
            earlier |= read_recipe(RUN, folder.recipe)
        elif not any(name in flags for name in _NEW_RUN):
            raise ConfigurationError(_no_run(folder))
    recipe = read_recipe(given.config, given.config_path)
    values = earlier | recipe | dict(flags)
    options = read(GraphcoreOptions, values, flags=True)
    if options.dataset == FOLDER and "dataset_path" not in values:
        raise ConfigurationError(
            "--dataset folder needs --dataset-path: the folder with one folder of images per "
            "class, or a CSV file."
        )
    return options


def _no_run(folder: RunFolder) -> str:
    """Return an error message about a folder without a run, with the nearest one that has a run."""
    runs = {recipe.parent.name: recipe.parent for recipe in folder.path.parent.glob("*/recipe.yml")}
    near = difflib.get_close_matches(folder.path.name, runs, 1, cutoff=0)
    question = f" Did you mean {runs[near[0]]}?" if near else ""
    return (
        f"--output-dir {folder.path} has no run to resume.{question} To start a run there, also "
        "pass --model, --dataset or --config."
    )


def read_recipe(name: str | None, path: str | Path | None) -> dict[str, Any]:
    """Return the values of a recipe, by the names of the fields of `Options`.

    Args:
        name: name of the recipe; `None` is no recipe.
        path: recipe file; by default `RECIPES`.

    Raises:
        ConfigurationError: if there is no such file or recipe, or an option in it is unknown or
            not valid.
    """
    if name is None:
        if path is not None:
            raise ConfigurationError(
                f"--config-path {path} was given without --config. Pass --config and one of: "
                f"{', '.join(recipes_in(Path(path)))}"
            )
        return {}
    file = RECIPES if path is None else Path(path)
    recipes = recipes_in(file)
    if name not in recipes:
        raise ConfigurationError(
            f"{name!r} is not a recipe of {file.name}{suggestion(name, recipes)} "
            f"It has: {', '.join(recipes)}"
        )
    values = {
        key: os.path.expandvars(value) if isinstance(value, str) else value
        for key, value in recipes[name].items()
    }
    read(GraphcoreOptions, values, f"recipe {name!r}: ", flags=True)
    fields_by_key = accepted_keys(GraphcoreOptions)
    return {fields_by_key[key.replace("-", "_")]: value for key, value in values.items()}


def recipes_in(file: Path) -> dict[str, dict[str, Any]]:
    """Return the recipes of a file by name; entries that are no mappings are left out."""
    return {str(name): entry for name, entry in read_yaml(file).items() if isinstance(entry, dict)}


def as_recipe(options: Options) -> dict[str, Any]:
    """Return options as the values of a recipe, without those that apply to one command only."""
    recipe: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name in _NOT_IN_RECIPES or value is None:
            continue
        is_yaml = isinstance(value, (bool, int, float, str, list, dict))
        recipe[field.name.replace("_", "-")] = value if is_yaml else str(value)
    return recipe
