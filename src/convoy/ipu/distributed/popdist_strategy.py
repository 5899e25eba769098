"""`PopDistStrategy`: averages gradients over the replicas of all processes."""

from convoy import distributed
from convoy.ipu.config import IPUConfig
from convoy.ipu.ipu_strategy import IPUStrategyV1


class PopDistStrategy(IPUStrategyV1):
    """Runs models on all devices of a run, and averages gradients over replicas.

    Args:
        ipu_device: name of the logical device.
        add_ipu_cross_replica_reductions: must be `True`: gradients are always reduced.
        enable_dataset_iterators: no effect, since the engine reads datasets.
        enable_keras_extensions: whether models made in the scope run on Convoy's engine.
    """

    reduction = "mean"
    takes_pipeline_stages = False

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        add_ipu_cross_replica_reductions: bool = True,
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        if not add_ipu_cross_replica_reductions:
            raise NotImplementedError(
                "add_ipu_cross_replica_reductions=False would let weights differ. Leave it out."
            )
        super().__init__(ipu_device, enable_keras_extensions=enable_keras_extensions)

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas of a model that takes one device."""
        return len(self.devices)

    def update_ipu_config(self, config: IPUConfig) -> None:
        """Set the number of processes, and the index of this one, in a configuration."""
        distribution = config.experimental.multi_replica_distribution
        distribution.process_count = distributed.count()
        distribution.process_index = distributed.index()
