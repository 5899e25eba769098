from convoy.estimator import Estimator, EvalSpec, RunConfig, TrainSpec, train_and_evaluate

from .conftest import regression


def test_evaluates_every_checkpoint_while_the_data_is_read_on(tmp_path, data, batches, stock):
    estimator = Estimator(regression, tmp_path, RunConfig(checkpoint_every=2))
    found = []

    def evaluated():
        found.append(estimator.latest_checkpoint().name[-1])
        return data

    results = train_and_evaluate(estimator, TrainSpec(batches, max_steps=4), EvalSpec(evaluated))
    assert found == ["2", "4"]
    assert results["global_step"] == 4
    stock.train(2, 4).check(estimator)
