"""A callback that lets the callbacks after it read sharded variables, in several processes."""

import keras
from convoy import keras_bridge
from convoy.engine.data.placement import Placement, spans_processes


class GatheredState(keras.callbacks.Callback):
    """Gathers variables that are sharded over processes, before other callbacks run.

    A process cannot read the shards of the others, and a callback may run in one process only. All
    processes therefore gather together; the next device call shards the variables again. No
    activations are stored between device calls, so this takes less memory than training.

    Args:
        placement: the devices of the run.
    """

    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self._placement = placement

    def _gather(self, *_: object, **__: object) -> None:
        optimizer = getattr(self.model, "optimizer", None)
        own = optimizer.variables if optimizer is not None else []
        sharded = [
            variable
            for variable in (*self.model.variables, *own)
            if spans_processes(variable.value) and not variable.value.is_fully_replicated
        ]
        gathered = self._placement.replicate(keras_bridge.values(sharded))
        keras_bridge.assign(sharded, gathered)

    on_train_batch_end = on_epoch_end = on_train_end = _gather
    on_test_begin = on_test_batch_end = on_predict_batch_end = _gather
