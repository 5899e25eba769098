from dataclasses import fields

import pytest
import yaml
from convoy.cli.train import parse
from convoy.train.recipe import RECIPES, as_recipe, read_options, read_recipe, recipes_in


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


@pytest.mark.parametrize("name", recipes_in(RECIPES))
def test_every_recipe_of_the_package_is_valid(name):
    assert read_options({"config": name}).config == name


GRAPHCORES = [name for name in recipes_in(RECIPES) if name.startswith("resnet")]


@pytest.mark.parametrize("name", GRAPHCORES)
def test_recipes_of_graphcore_do_not_depend_on_our_defaults(name):
    recipe, defaults = read_recipe(name, RECIPES), read_recipe("graphcore_defaults", RECIPES)
    assert set(defaults) <= set(recipe)


def test_the_command_line_beats_the_recipe_and_that_the_defaults(tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text("a: {num_epochs: 3, model: cifar_resnet8, device-mapping: [0, 1]}\n")
    options = parse(["--config", "a", "--config-path", str(file), "--num-epochs", "5"])
    assert (options.num_epochs, options.model, options.seed) == (5, "cifar_resnet8", None)
    assert options.device_mapping == [0, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: {num-epochs: 3, modle: x}", "recipe 'a': modle is unknown. Did you mean model?"),
        ("a: {num-epoch: 3}", "recipe 'a': num-epoch is unknown. Did you mean num-epochs?"),
        ("a: {weight: 3}", "weight is unknown. Did you mean weight_decay or weight_updates_per"),
        ("a: {dataset: moon}", "--dataset: 'moon' is not one of"),
        ("a: {dataset: {name: moon}}", "--dataset: {'name': 'moon'} is not a string"),
        ("a: {num-epochs: 0}", "recipe 'a': --num-epochs 0: pass 1 or more"),
        ("- a", "is not a mapping"),
        ("a: {", "is not YAML"),
    ],
)
def test_a_recipe_is_checked_like_the_command_line(tmp_path, text, message):
    file = tmp_path / "mine.yml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_recipe("a", str(file))


def test_options_as_a_recipe_give_the_same_options(tmp_path):
    options = parse(["--config", "resnet50_mlperf_bs16"])
    file = tmp_path / "recipe.yml"
    file.write_text(yaml.safe_dump({"run": dict(as_recipe(options))}))
    again = parse(["--config", "run", "--config-path", str(file)])
    for field in fields(options):
        if not field.name.startswith("config"):
            assert getattr(again, field.name) == getattr(options, field.name), field.name
    assert set(read_recipe("run", str(file))) <= {field.name for field in fields(options)}


def test_a_mistyped_folder_of_a_run_to_resume_is_answered_with_the_nearest(tmp_path, capsys):
    for name in ("digits", "pictures", "other/deep"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "recipe.yml").write_text("run: {model: cifar_resnet8}\n")
    with pytest.raises(SystemExit):
        parse(["--resume", "--output-dir", str(tmp_path / "digit")])
    assert capsys.readouterr().err == (
        f"convoy train: error: --output-dir {tmp_path / 'digit'} has no run to resume. Did you "
        f"mean {tmp_path / 'digits'}? To start a run there, also pass --model, --dataset or "
        "--config.\n"
    )
    with pytest.raises(ValueError, match=r"x has no run to resume\. To start a run there"):
        read_options({"resume": True, "output_dir": str(tmp_path / "none" / "x")})
    for name, value in (("model", "toy_model"), ("dataset", "digits"), ("config", "mnist")):
        new = {"resume": True, "output_dir": str(tmp_path / "digit"), name: value}
        assert getattr(read_options(new), name) == value


def test_own_images_need_a_path(tmp_path):
    with pytest.raises(ValueError, match=r"^--dataset folder needs --dataset-path: the folder"):
        read_options({"dataset": "folder"})
    assert read_options({"dataset": "folder", "dataset_path": "."}).dataset_path == "."
    file = tmp_path / "mine.yml"
    file.write_text("a: {dataset: folder, dataset-path: x}\n")
    assert read_options({"config": "a", "config_path": str(file)}).dataset_path == "x"


def test_variables_of_the_environment_are_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("IMAGES", "/data")
    file = tmp_path / "mine.yml"
    file.write_text("a: {dataset-path: $IMAGES/cifar}\n")
    assert read_recipe("a", file) == {"dataset_path": "/data/cifar"}


def test_a_list_of_one_may_be_written_as_its_item(tmp_path):
    file = tmp_path / "mine.yml"
    file.write_text("a: {pipeline-splits: flatten, available-memory-proportion: 15}\n")
    options = read_options({"config": "a", "config_path": str(file)})
    assert options.pipeline_splits == ["flatten"]
    assert options.available_memory_proportion == [15.0]


def test_a_recipe_of_an_earlier_version_has_graphcores_spellings(tmp_path):
    file = tmp_path / "recipe.yml"
    file.write_text("run: {model-name: toy_model, gradient-accumulation-count: 2}\n")
    assert read_recipe("run", file) == {"model": "toy_model", "gradient_accumulation": 2}
