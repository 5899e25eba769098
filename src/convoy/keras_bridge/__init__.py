"""The only package that uses private names of Keras, apart from names for subclasses of optimizers.

The tests in `tests/keras_bridge` fail when a release of Keras changes one of these names. Each
module gives the reason for those that it uses.
"""

from convoy.keras_bridge.batches import (
    Batches,
    class_weight_to_sample_weights,
    first_inputs,
    has_state,
    host_arrays,
    is_array_data,
    train_validation_split,
    unpack,
)
from convoy.keras_bridge.callbacks import (
    Callbacks,
    callback_state_names,
    progress_bar,
    python_logs,
    weight_reading_callback,
    without_file_writers,
)
from convoy.keras_bridge.compilability import (
    RUN_METHODS,
    StockReason,
    make_crops_compilable,
    stock_reason,
)
from convoy.keras_bridge.graphs import (
    GraphCall,
    ModelState,
    clear_losses,
    get_keras_mask,
    graph_calls,
    graph_input_specs,
    graph_input_tensors,
    graph_inputs,
    graph_outputs,
    has_marked_layers,
    is_subclassed,
    marked_calls,
    model_graph,
    pack_outputs,
    replaced_graph_run,
    replay_graph,
    set_keras_mask,
    set_traced_graph,
    with_training,
)
from convoy.keras_bridge.models import (
    adopt_new_models,
    build_for_batch,
    build_for_prediction,
    call_training_argument,
    compilation,
    input_names,
    layers_are_built,
    overrides_call,
    policies,
    refusal,
)
from convoy.keras_bridge.operations import count_kept, replaced_operations
from convoy.keras_bridge.optimizers import split_optimizer
from convoy.keras_bridge.steps import (
    compiled_loss,
    compiled_losses,
    custom_step,
    epoch_logs,
    flat_metrics,
    initial_epoch,
    limit_epochs,
    limit_steps,
    loss_and_updates,
    metric_results,
    metric_updates_refused,
    of_custom_metrics,
    output_structure,
    overridden,
    set_loss_tracker,
    should_validate,
    update_metrics,
)
from convoy.keras_bridge.traced import (
    UntraceableError,
    built_inputs,
    is_built_for,
    trace,
)
from convoy.keras_bridge.trainer import COPY, route_methods, stock_method
from convoy.keras_bridge.variables import (
    Variables,
    assign,
    global_seed,
    random_seed,
    seed_variables,
    set_global_seed,
    updated_variables,
    values,
    variables_held_as,
)
