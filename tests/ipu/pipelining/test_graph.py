"""The stages of a pipeline, called on symbolic tensors."""

import keras
import numpy as np
import pytest
from convoy.estimator.jax_function import is_symbolic
from convoy.ipu.ipu_infeed_queue import IPUInfeedQueue
from convoy.ipu.pipelining.graph import PipelineInput, as_row, trace
from convoy.ipu.pipelining.options import OptimizerFunctionOutput

X = np.ones((2, 3), "float32")


def stages(*functions):
    return tuple((function,) for function in functions)


def test_constant_inputs_come_before_the_elements_of_the_infeed():
    data = PipelineInput([np.float64(5)], IPUInfeedQueue([(X, X + 1), (X + 2, X + 3)]))
    assert [tuple(spec.shape) for spec in data.specs] == [(), (2, 3), (2, 3)]
    assert data.specs[0].dtype == "float32"  # as JAX holds it
    first, second = data.rows(2)
    assert [array.shape for array in first] == [(1,), (1, 2, 3), (1, 2, 3)]
    assert [float(array.flat[0]) for array in second] == [5, 3, 4]
    assert data.arguments([1, 2, 3]) == ([1, 2, 3], {})


def test_a_dict_becomes_arguments_with_names():
    data = PipelineInput([], IPUInfeedQueue([{"a": X, "b": X}]))
    args, kwargs = data.arguments(["first", "second"])
    assert (args, kwargs) == ([], {"a": "first", "b": "second"})


def test_inputs_of_the_same_shapes_have_the_same_key():
    assert PipelineInput([X], None).key == PipelineInput([X + 1], None).key
    assert PipelineInput([X], None).key != PipelineInput([X[:1]], None).key
    with pytest.raises(ValueError, match="Pass inputs or an infeed_queue"):
        PipelineInput([], None)


def test_each_stage_gets_what_the_one_before_returned():
    seen = []

    def first(x):
        return x + 1, x * 2

    def second(a, b):
        seen.append((tuple(a.shape), tuple(b.shape)))
        return {"sum": a + b}

    def third(sum):
        return sum

    graph = trace(stages(first, second, third), None, PipelineInput([X], None))
    assert seen == [((2, 3), (2, 3))]
    assert graph.last == 2
    assert graph.minimised is None
    model = keras.Model(graph.rows, as_row(graph.outputs, next(iter(graph.rows.values()))))
    rows = {"given_0": np.stack([X, X])}
    np.testing.assert_allclose(model(rows)[0], 3 * X + 1)


def test_concurrent_functions_of_a_stage_count_as_stages():
    both = (lambda x: x + 1, lambda x: (x * 2, x * 3))
    graph = trace((both, (lambda a, b, c: a + b + c,)), None, PipelineInput([X], None))
    assert graph.last == 2
    with pytest.raises(ValueError, match="concurrent stage returns a dict"):
        trace(((both[0], lambda x: {"y": x}), (lambda a: a,)), None, PipelineInput([X], None))


def test_the_optimizer_function_gets_the_last_outputs():
    def minimise(x):
        return OptimizerFunctionOutput(keras.optimizers.SGD(), keras.ops.mean(x))

    graph = trace(stages(lambda x: x, lambda x: x), minimise, PipelineInput([X], None))
    assert is_symbolic(graph.minimised.loss)
    with pytest.raises(ValueError, match=r"The loss is 1\. Return a tensor"):
        trace(
            stages(lambda x: x, lambda x: x),
            lambda x: OptimizerFunctionOutput(keras.optimizers.SGD(), 1),
            PipelineInput([X], None),
        )


def test_a_stage_must_use_its_arguments():
    with pytest.raises(ValueError, match="Stage 0 returns nothing that depends on its arguments"):
        trace(stages(lambda x: 3, lambda x: x), None, PipelineInput([X], None))
