"""The options of `convoy train`: type, default, help text and group of each.

A field's name is that of its flag, with `_` for `-`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Annotated, TypeVar, get_args

from convoy.configuration import (
    Configuration,
    Count,
    ExactFraction,
    NotNegative,
    Option,
    Parameters,
    Whole,
)
from convoy.data.augment import Border
from convoy.data.catalog import DATASETS, Normalisation
from convoy.layers.views import WEIGHTS as VIEWS
from convoy.pipeline import ALIASES, NAMES, canonical_name
from convoy.precision import PRECISIONS
from pydantic import AfterValidator, BeforeValidator, Field

_recipe = partial(Option, group="recipe")
_phase = partial(Option, group="phases")
_model = partial(Option, group="model")
_data = partial(Option, group="data")
_augmentation = partial(Option, group="augmentation")
_batch = partial(Option, group="batch size and data parallelism")
_pipeline = partial(Option, group="pipeline parallelism")
_optimization = partial(Option, group="optimization")
_output = partial(Option, group="logs and checkpoints")
_numerics = partial(Option, group="numerics")

T = TypeVar("T")
Probability = Annotated[float, Field(ge=0, le=1)]
# In a recipe, a list of one item may be written without brackets.
ListOf = Annotated[
    list[T], BeforeValidator(lambda value: value if isinstance(value, list) else [value])
]


@dataclass(frozen=True)
class Options(Configuration):
    """The options of a run."""

    config: Annotated[str | None, _recipe("name of a recipe in the recipe file")] = None
    config_path: Annotated[str | None, _recipe("recipe file (default: the one in the package)")] = (
        None
    )

    training: Annotated[bool, _phase("train")] = True
    validation: Annotated[bool, _phase("validate")] = True
    checkpoint_input_dir: Annotated[
        str | None, _phase("validate the checkpoints in this folder instead of the run's own")
    ] = None
    resume: Annotated[bool, _phase("resume an interrupted run in --output-dir")] = False
    compile_only: Annotated[
        bool, _phase("stop after the first device call; its program stays in the program cache")
    ] = False
    mlperf_logging: Annotated[
        bool, _phase("train one epoch, restore the weights, then start the clock")
    ] = False
    sweep: Annotated[bool, _phase("report when the target accuracy was reached")] = False
    target_accuracy: Annotated[float, _phase("target accuracy of a sweep")] = 0.759

    model: Annotated[
        str,
        _model(
            "toy_model, toy_model_bn, mnist_cnn, cifar_fast, cifar_resnet8/20/32/44/56, "
            "resnet18/34/50/101/152, a name in keras.applications, or module:function of your own",
            aliases=("model-name",),
        ),
    ] = "toy_model"
    norm_layer: Annotated[
        Parameters,
        _model(
            "batch_norm, custom_batch_norm (statistics advance once per weight update) or "
            "group_norm, with parameters"
        ),
    ] = field(default_factory=lambda: {"name": "custom_batch_norm", "momentum": 0.97})
    batch_norm_group: Annotated[
        Count,
        _model(
            "number of replicas that share batch-norm statistics (SyncBatchNorm)",
            aliases=("dbn-replica-group-size",),
        ),
    ] = 1

    dataset: Annotated[str, _data("name of the dataset", choices=DATASETS)] = "cifar10"
    dataset_path: Annotated[str, _data("folder of the dataset")] = "."
    pipeline_num_parallel: Annotated[
        Annotated[Whole, Field(ge=0)] | None,
        _data(
            "maximum number of processes that decode image files; 0 decodes in this one "
            "(default: one per core, which is also the limit)"
        ),
    ] = None
    damaged_images: Annotated[
        str,
        _data(
            "skip files and records that cannot be read, with a message, or stop",
            choices=("skip", "stop"),
        ),
    ] = "skip"
    synthetic_data: Annotated[
        str | None,
        _data(
            "random images, generated on the host (cpu, host) or on the device (ipu, device)",
            choices=("cpu", "host", "ipu", "device"),
        ),
    ] = None
    shuffle: Annotated[bool, _data("shuffle the training data in every epoch")] = True
    seed: Annotated[Whole | None, _data("random seed (default: drawn at the start)")] = None
    deterministic: Annotated[bool, _data("the same data in the same order; no shuffling")] = False
    eight_bit_transfer: Annotated[bool, _data("copy images to the device as bytes")] = False
    accelerator_side_preprocess: Annotated[
        bool, _data("normalise (and flip) on the device, in the model's first layer")
    ] = False
    normalisation: Annotated[
        str | None,
        _data(
            "divide by 255, standardise each image, or use the channel statistics of a dataset "
            "(default: depends on the dataset)",
            choices=get_args(Normalisation),
        ),
    ] = None

    augment: Annotated[
        bool, _augmentation("random crops and flips, where the dataset has them")
    ] = True
    flip: Annotated[
        str,
        _augmentation(
            "mirror images at random, or alternating: each in every second epoch",
            choices=("random", "alternating"),
        ),
    ] = "random"
    crop_padding: Annotated[
        Whole | None,
        _augmentation("pixels of padding before a random crop (default: depends on the dataset)"),
    ] = None
    crop_border: Annotated[
        str, _augmentation("values of the padding", choices=get_args(Border))
    ] = "zeros"
    mixup: Annotated[
        NotNegative, _augmentation("mixup: alpha of the Beta distribution; 0 is off")
    ] = 0.0
    cutmix: Annotated[
        NotNegative, _augmentation("CutMix: alpha of the Beta distribution; 0 is off")
    ] = 0.0
    rand_augment: Annotated[Probability, _augmentation("RandAugment: strength from 0 to 1")] = 0.0
    random_erasing: Annotated[
        Probability, _augmentation("probability of erasing a random rectangle")
    ] = 0.0
    label_smoothing: Annotated[
        float | None, _augmentation("label probability that is spread over all classes")
    ] = None

    micro_batch_size: Annotated[Count, _batch("samples per replica and step")] = 1
    num_replicas: Annotated[Count, _batch("copies of the model, for data parallelism")] = 1
    gradient_accumulation: Annotated[
        Count | None,
        _batch(
            "micro-batches per replica and weight update (default: 1)",
            aliases=("gradient-accumulation-count",),
        ),
    ] = None
    global_batch_size: Annotated[
        Count | None, _batch("samples per weight update, instead of --gradient-accumulation")
    ] = None
    weight_updates_per_epoch: Annotated[
        Whole, _batch("weight updates per epoch; -1 uses all training data")
    ] = -1
    num_epochs: Annotated[Count, _batch("epochs")] = 1
    validation_micro_batch_size: Annotated[
        Count | None, _batch("micro-batch size in validation (default: --micro-batch-size)")
    ] = None
    validation_num_replicas: Annotated[
        Count | None,
        _batch("replicas in validation, each with the complete model (default: all devices)"),
    ] = None
    validation_views: Annotated[
        Whole,
        _batch(
            "views of each validation image, whose logits are averaged: 2 adds the mirror image, "
            "6 also shifts both by a pixel in two directions",
            choices=tuple(VIEWS),
        ),
    ] = 1

    pipeline_splits: Annotated[
        ListOf[str],
        _pipeline("first layers of the second and later stages; or auto and the number of stages"),
    ] = field(default_factory=list)
    device_mapping: Annotated[ListOf[Whole] | None, _pipeline("device of each stage")] = None
    pipeline_schedule: Annotated[
        str,
        _pipeline(
            "pipeline schedule: the order in which stages run micro-batches",
            choices=(*NAMES, *ALIASES),
        ),
        AfterValidator(canonical_name),
    ] = "gpipe"
    activation_checkpointing: Annotated[
        bool,
        _pipeline(
            "recompute the activations of a stage in the backward pass",
            aliases=("recomputation",),
        ),
    ] = False

    optimizer: Annotated[
        str,
        _optimization("optimizer", choices=("sgd", "lars", "rmsprop", "adam", "adamw")),
    ] = "sgd"
    optimizer_params: Annotated[Parameters, _optimization("parameters of the optimizer")] = field(
        default_factory=lambda: {"momentum": 0}
    )
    lr_schedule: Annotated[
        str,
        _optimization(
            "learning-rate schedule", choices=("const", "cosine", "stepped", "polynomial")
        ),
    ] = "const"
    lr_schedule_params: Annotated[
        Parameters,
        _optimization("parameters of the schedule; learning rates are per sample of the batch"),
    ] = field(default_factory=lambda: {"initial_learning_rate": 0.0001})
    lr_warmup_params: Annotated[
        Parameters | None,
        _optimization('{"warmup_mode": shift or mask, "warmup_epochs": x}'),
    ] = None
    lr_staircase: Annotated[bool, _optimization("change the learning rate only between epochs")] = (
        False
    )
    weight_decay: Annotated[NotNegative, _optimization("decoupled weight decay")] = 0.0
    l2_regularization: Annotated[
        NotNegative, _optimization("L2 regularisation, added to the gradient")
    ] = 0.0
    clip_norm: Annotated[float | None, _optimization("maximum global norm of the gradient")] = None
    adaptive_clip: Annotated[
        NotNegative,
        _optimization(
            "adaptive gradient clipping: maximum norm relative to the weights, per output; 0 is off"
        ),
    ] = 0.0
    ema: Annotated[
        float,
        _optimization("momentum of a moving average of the weights, which is validated; 0 is off"),
    ] = 0.0
    lookahead: Annotated[
        Annotated[Whole, Field(ge=0)],
        _optimization("Lookahead: number of updates between synchronisations; 0 is off"),
    ] = 0

    logs_per_epoch: Annotated[
        ExactFraction, _output("log lines per epoch; 1/2 is one every 2 epochs")
    ] = Fraction(1)
    ckpts_per_epoch: Annotated[
        ExactFraction | None,
        _output("checkpoints per epoch; 0 is none (default: 1, at a log line if there is one)"),
    ] = None
    first_ckpt_epoch: Annotated[float, _output("epochs until the first checkpoint")] = 0.0
    checkpoint_output_dir: Annotated[
        str | None, _output("folder of checkpoints (default: inside the run's folder)")
    ] = None
    state_every: Annotated[
        str,
        _output(
            "interval at which the state for --resume is saved: epoch, a number of weight "
            "updates, a time such as 10m, or never"
        ),
    ] = "epoch"
    clean_dir: Annotated[bool, _output("delete the run's checkpoints after validation")] = False
    output_dir: Annotated[
        str | None, _output("folder of the run (default: runs/<model>-<dataset>-<time>)")
    ] = None
    report: Annotated[bool, _output("record programs, times and memory, for convoy report")] = False
    mlflow: Annotated[bool, _output("log to MLflow, as its own settings say")] = False
    wandb: Annotated[bool, _output("log to Weights & Biases")] = False
    wandb_run_name: Annotated[str | None, _output("run name in Weights & Biases")] = None
    wandb_tags: Annotated[ListOf[str] | None, _output("run tags in Weights & Biases")] = None

    precision: Annotated[
        str,
        _numerics("compute and weight precision; 16.32 is mixed precision", choices=PRECISIONS),
    ] = "16.16"
    loss_scaling: Annotated[NotNegative, _numerics("static loss scale; 0 is off")] = 0.0
    auto_loss_scaling: Annotated[bool, _numerics("dynamic loss scale")] = False
    stochastic_rounding: Annotated[
        str,
        _numerics(
            "stochastic rounding of 16-bit weights",
            choices=("OFF", "ON", "REPLICA_IDENTICAL_ONLY"),
        ),
    ] = "ON"
    fp_exceptions: Annotated[bool, _numerics("stop when the loss is not finite")] = False
