"""Scripts whose programs are compiled, and the data of `convoy train` without its files."""

import sys

import keras
import pytest
from convoy.compile.sources import SAVING, run_program, run_training
from convoy.engine.prepared_model import PreparedModel
from convoy.train.flags import Options


@pytest.fixture
def run(tmp_path):
    """Run a script with some arguments, and return its variables."""

    def run_script(text, *words, replicas=None):
        script = tmp_path / "script.py"
        seen: dict = {}
        keras.script_variables = seen
        script.write_text(f"import keras\nseen = keras.script_variables\n{text}")
        try:
            run_program([str(script), *words], replicas)
        finally:
            del keras.script_variables
        return seen

    return run_script


def test_a_script_receives_its_own_arguments(run):
    before = sys.argv
    seen = run("import sys\nseen['words'] = sys.argv[1:]", "--epochs", "3")
    assert seen["words"] == ["--epochs", "3"]
    assert sys.argv is before


def test_a_script_saves_no_models(run, tmp_path):
    before = [getattr(keras.Model, name) for name in SAVING]
    run(
        "model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])\n"
        f"model.save({str(tmp_path / 'model.keras')!r})\n"
        f"model.save_weights({str(tmp_path / 'model.weights.h5')!r})\n"
    )
    assert [file.name for file in tmp_path.iterdir()] == ["script.py"]
    assert [getattr(keras.Model, name) for name in SAVING] == before


def test_arguments_and_saving_are_restored_after_an_error_too(run):
    before = sys.argv, keras.Model.save
    with pytest.raises(ZeroDivisionError):
        run("1 / 0")
    assert (sys.argv, keras.Model.save) == before


@pytest.mark.parametrize("replicas", [None, 2])
def test_replicas_are_a_strategy_around_the_script(run, replicas):
    text = "seen['model'] = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])"
    model = run(text, replicas=replicas)["model"]
    assert bool(PreparedModel.of(model).methods) == (replicas is not None)


def test_random_images_replace_a_dataset_without_files(tmp_path):
    messages = []
    options = Options(
        model="toy_model",
        dataset="mnist",
        dataset_path=str(tmp_path),
        num_epochs=1,
        weight_updates_per_epoch=1,
        validation=False,
    )
    run_training(options, messages.append)
    assert messages == ["mnist was not found, so random images replace it."]
