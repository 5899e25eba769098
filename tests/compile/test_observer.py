"""Programs that are compiled at their first call. The devices of the target are CPUs here."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from convoy import compile_target
from convoy.compile.failures import TooLarge
from convoy.compile.observer import TargetObserver
from convoy.compile_target import CompileOnlyArray, CompileTarget, stand_in
from convoy.engine.data.placement import Placement
from convoy.engine.execution_config import ExecutionConfig
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding


@pytest.fixture
def devices():
    return jax.devices()


@pytest.fixture
def observer(devices):
    """Return an observer of a run on devices whose arrays have no values."""
    lines = []

    @contextlib.contextmanager
    def timed(line):
        lines.append(line)
        yield

    observer = TargetObserver(timed, {})
    observer.lines = lines
    target = CompileTarget("cpus", tuple(devices), 1 << 30, 1e12, 1e11)
    run = observer.run("fit", None, ExecutionConfig(Placement(None)))
    with compile_target.use(target), run:
        yield observer


def on(device, *shape):
    return stand_in(shape, "float32", SingleDeviceSharding(device))


def test_a_program_is_compiled_once_for_each_shape(observer, devices):
    doubled = observer.program("double", jax.jit(lambda x: 2 * x))
    for rows in (4, 4, 8):
        result = doubled(on(devices[0], rows, 3))
        assert isinstance(result, CompileOnlyArray)
        assert (result.shape, result.dtype) == ((rows, 3), jnp.float32)
    assert [program.name for program in observer.programs] == ["double", "double"]
    assert observer.lines == ["double (fit)"] * 2
    assert observer.programs[1].memory["argument"] == 8 * 3 * 4


def test_another_replica_uses_the_same_program_on_its_own_device(observer, devices):
    doubled = observer.program("double", jax.jit(lambda x: 2 * x))
    first, second = (doubled(on(device, 4)) for device in devices[:2])
    assert len(observer.programs) == 1
    assert first.sharding.device_set == {devices[0]}
    assert second.sharding.device_set == {devices[1]}


def test_values_without_a_device_are_on_those_of_the_other_arguments(observer, devices):
    mesh = Mesh(np.array(devices[:2]), ("data",))
    x = stand_in((4,), "float32", NamedSharding(mesh, PartitionSpec("data")))
    scaled = observer.program("scale", jax.jit(lambda x, factor: x * factor))
    scaled(x, np.float32(2))
    (program,) = observer.programs
    assert program.devices == 2
    assert program.memory["argument"] == 2 * 4 + 4  # two elements of x, and the factor


def test_a_program_keeps_the_attributes_of_the_function(observer):
    program = observer.program("double", jax.jit(lambda x: 2 * x))
    assert program.trace(jnp.ones(3)).out_info.shape == (3,)


class Rejected:
    """A program for which the compiler raises an error."""

    def __init__(self, message):
        self.message = message

    def trace(self, *arguments):
        traced = jax.jit(lambda x: 2 * x).trace(*arguments)
        self.args_info = traced.args_info
        return self

    def lower(self):
        return self

    def compile(self, options):
        raise jax.errors.JaxRuntimeError(self.message)


def test_a_program_that_is_too_large_is_reported_with_its_need(observer, devices):
    message = "Ran out of memory. Used 20G of 16G hbm. Exceeded capacity by 4G."
    with pytest.raises(TooLarge, match="step") as error:
        observer.program("step", Rejected(message))(on(devices[0], 1000))
    name, need, available, run = error.value.demand
    assert (name, available, run) == ("step", 16 << 30, observer.runs[0])
    assert (need.total, need.fixed, need.state) == (20 << 30, 4000, 0)


def test_other_errors_of_the_compiler_are_raised_as_they_are(observer, devices):
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        observer.program("step", Rejected("INTERNAL: a bug"))(on(devices[0], 4))
