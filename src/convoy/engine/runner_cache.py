"""The runners of a model in all modes."""

import jax
import keras
from convoy.engine.chunk_runner import ModelRunner
from convoy.engine.data.placement import fetch_absent, to_local
from convoy.engine.execution_config import ExecutionConfig
from convoy.engine.observer import Observer
from convoy.engine.program import WholeModelRunner
from convoy.engine.state import Mode
from convoy.engine.step.constant_folding import FoldedWeights


class RunnerCache:
    """The runners of a model in each mode, kept until the model is compiled again."""

    def __init__(self, model: keras.Model, config: ExecutionConfig, observer: Observer) -> None:
        self.model = model
        self.config = config
        self.observer = observer
        self._runners: dict[Mode, ModelRunner] = {}
        self._weights = FoldedWeights()

    def get(self, mode: Mode) -> ModelRunner:
        """Return the runner of a mode, with the model's variables on its devices."""
        if mode == "train":
            self._weights.kept.clear()  # the weights are about to change
        runner = self._runners.get(mode)
        if runner is None or not runner.still_fits():
            runner = self._runners[mode] = self._make(mode)
        runner.place()
        return runner

    def find(self, mode: Mode) -> ModelRunner | None:
        """Return the runner of a mode, if it was made already."""
        return self._runners.get(mode)

    def release(self) -> None:
        """Replace values that are shared by several processes with values of this process."""
        if self.config.placement.spans_processes:
            for runner in self._runners.values():
                values, structure = jax.tree.flatten(runner.variables.read())
                local = map(to_local, fetch_absent(values))
                runner.variables.write(jax.tree.unflatten(structure, local))

    def _make(self, mode: Mode) -> ModelRunner:
        if self.config.pipeline is not None:
            return self.config.pipeline.make_runner(self.model, self.config, mode, self.observer)
        return WholeModelRunner(self.model, self.config, mode, self._weights, self.observer)
