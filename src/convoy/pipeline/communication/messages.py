"""What goes from one stage to another: tensors, the loss so far, and gradients."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from convoy.pipeline.communication.transfer import move
from convoy.pipeline.runner.layout import Layout
from convoy.pipeline.runner.shapes import LOSS, Shapes
from convoy.pipeline.schedule import Action, Kind


class Mail:
    """What stages have sent, until the last reader at a place has taken it.

    All processes carry out the same actions in the same order: each runs those of its own stages,
    and expects what the others send.

    Args:
        layout: where the stages are.
        shapes: of the tensors between stages, where some are in other processes; else none.
    """

    def __init__(self, layout: Layout, shapes: Shapes) -> None:
        self._layout, self._shapes = layout, shapes
        self._tensors: dict[tuple[int, int, int, int], jax.Array] = {}
        self._losses: dict[tuple[int, int, int], jax.Array] = {}
        self._gradients: dict[tuple[int, int, int], list[jax.Array]] = {}

    def expect(self, action: Action, replica: int) -> None:
        """Let what an action of another process sends here come in."""
        if action.kind == Kind.FORWARD:
            self.send(action.stage, action.micro_batch, replica, None, None)
        elif action.kind != Kind.BACKWARD_WEIGHTS:
            self.send_back(action.stage, action.micro_batch, replica, None)

    def send(
        self,
        stage: int,
        micro_batch: int,
        replica: int,
        outputs: Sequence[jax.Array] | None,
        loss: jax.Array | None,
    ) -> None:
        """Send what a stage has computed to its readers, and the loss so far to the next stage."""
        layout = self._layout
        if stage == layout.last:
            return
        own = layout.stages[stage].outputs
        computed = dict(zip(own, outputs, strict=True)) if outputs is not None else None
        following = layout.mapping[stage + 1]
        source = layout.device(replica, layout.mapping[stage])
        for place in layout.targets[stage]:
            tensors = [tensor for tensor in own if place in layout.last_reader[tensor]]
            goes = place == following
            values = None
            if computed is not None and loss is not None:
                values = [*(computed[t] for t in tensors), *([loss] if goes else [])]
            shapes = [*self._shapes_of(tensors), *([LOSS] if goes else [])]
            moved = move(values, shapes, source, layout.device(replica, place))
            for tensor, value in zip(tensors, moved, strict=False):
                self._tensors[replica, micro_batch, tensor, place] = value
            if goes and moved:
                self._losses[replica, micro_batch, stage + 1] = moved[-1]

    def receive(self, stage: int, micro_batch: int, replica: int) -> tuple[jax.Array, ...]:
        """Return what a stage reads of earlier ones."""
        layout = self._layout
        place = layout.mapping[stage]
        found = []
        for tensor in layout.received[stage]:
            key = (replica, micro_batch, tensor, place)
            is_last = layout.last_reader[tensor][place] == stage
            found.append(self._tensors.pop(key) if is_last else self._tensors[key])
        return tuple(found)

    def loss(self, stage: int, micro_batch: int, replica: int) -> jax.Array | None:
        """Return the loss that earlier stages have added up, if there are any."""
        return self._losses.pop((replica, micro_batch, stage), None)

    def send_back(
        self, stage: int, micro_batch: int, replica: int, gradients: Sequence[jax.Array] | None
    ) -> None:
        """Send the gradients of what a stage has read to those who computed it."""
        layout = self._layout
        source = layout.device(replica, layout.mapping[stage])
        for index, tensor in enumerate(layout.with_gradient[stage]):
            target = layout.device(replica, layout.mapping[layout.producer[tensor]])
            values = None if gradients is None else [gradients[index]]
            for moved in move(values, self._shapes_of([tensor]), source, target):
                self._gradients.setdefault((replica, micro_batch, tensor), []).append(moved)

    def gradients(self, stage: int, micro_batch: int, replica: int) -> tuple[list[jax.Array], ...]:
        """Return, for each output of a stage, the gradients that its readers have sent."""
        layout = self._layout
        if stage == layout.last:
            return ()
        return tuple(
            self._gradients.pop((replica, micro_batch, tensor), [])
            for tensor in layout.stages[stage].outputs
        )

    def _shapes_of(self, tensors: Sequence[int]) -> list[jax.ShapeDtypeStruct]:
        return [self._shapes[tensor] for tensor in tensors] if self._shapes else []
