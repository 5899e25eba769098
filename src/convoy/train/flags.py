"""The options of `convoy train`: type, default, help text and group of each.

A field's name is that of its flag, with `_` for `-`.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Literal, TypeVar

from convoy.configuration import (
    Configuration,
    Count,
    ExactFraction,
    NotNegative,
    Option,
    Parameters,
    Positive,
    Whole,
    WholeNotNegative,
)
from convoy.data.augment import Border
from convoy.data.catalog import DATASETS, Normalisation
from convoy.data.image_folder import FOLDER
from convoy.layers.test_time_augmentation import WEIGHTS as VIEWS
from convoy.pipeline import ALIASES, NAMES
from convoy.precision import CHOICES
from pydantic import BeforeValidator, Field

T = TypeVar("T")
Probability = Annotated[float, Field(ge=0, le=1)]
# In a recipe, a list of one item may be written without brackets.
ListOf = Annotated[
    list[T], BeforeValidator(lambda value: value if isinstance(value, list) else [value])
]


@dataclass(frozen=True)
class Options(Configuration, all_flags=True):
    """The options of a run.

    recipe:
        config: name of a recipe in the recipe file
        config_path: recipe file (default: the one in the package)

    phases:
        training: run the training phase
        validation: run the validation phase
        checkpoint_input_dir: validate the checkpoints in this folder instead of the run's own
        resume: resume an interrupted run in --output-dir
        compile_only: compile the programs of training into the compilation cache, and train nothing
        mlperf_logging: train one epoch as a warm-up, restore the weights, then start the clock
        sweep: report when the target accuracy was reached
        target_accuracy: target accuracy of a sweep

    model:
        model: toy_model, toy_model_bn, mnist_cnn, cifar_fast, cifar_resnet8/20/32/44/56,
            resnet18/34/50/101/152, a name in keras.applications, or module:function of your own
        weights: file with initial weights (.keras, .weights.h5 or .h5), for fine-tuning; layers of
            other shapes, such as the last one, keep their random weights
        freeze_until: name of the first layer that is trained; the weights of all layers before it
            stay as they are
        norm_layer: batch_norm, custom_batch_norm (statistics advance once per weight update) or
            group_norm, with parameters
        batch_norm_group: number of replicas that share batch-norm statistics (SyncBatchNorm)

    data:
        dataset: name of the dataset; folder is a folder of your own images
        dataset_path: folder of the dataset
        image_size: height and width to which the images of --dataset folder are resized
        validation_split: fraction of the images of --dataset folder that is held out, if they are
            not divided into train and val
        classes: classes of --dataset folder in the order of their labels (default: by name)
        pipeline_num_parallel: maximum number of processes that decode image files; 0 decodes in
            this one (default: one per core, which is also the limit)
        damaged_images: skip files and records that cannot be read, with a message, or stop
        synthetic_data: random images, generated on the host or on the device
        shuffle: shuffle the training data in every epoch
        seed: random seed (default: drawn at the start)
        deterministic: the same data in the same order; no shuffling
        eight_bit_transfer: copy images to the device as bytes
        accelerator_side_preprocess: normalise (and flip) on the device, in the model's first layer
        normalisation: divide by 255, standardise each image, or use the channel statistics of a
            dataset (default: depends on the dataset)

    augmentation:
        augment: random crops and flips, if the dataset has them
        flip: mirror images at random, or alternating: each in every second epoch
        crop_padding: pixels of padding before a random crop (default: depends on the dataset)
        crop_border: how the padding is filled
        mixup: alpha of mixup's Beta distribution; 0 is off
        cutmix: alpha of CutMix's Beta distribution; 0 is off
        rand_augment: strength of RandAugment, from 0 to 1
        random_erasing: probability of erasing a random rectangle
        label_smoothing: label probability that is spread over all classes

    batch size and data parallelism:
        micro_batch_size: samples per replica and step
        num_replicas: copies of the model, for data parallelism
        shard: state that is sharded over the replicas: the optimizer state, or also the weights
        gradient_accumulation: micro-batches per replica and weight update (default: 1)
        global_batch_size: samples per weight update, instead of --gradient-accumulation
        weight_updates_per_epoch: weight updates per epoch; -1 uses all training data
        num_epochs: epochs
        validation_micro_batch_size: micro-batch size in validation (default: --micro-batch-size)
        validation_num_replicas: replicas in validation (default: one on each device, or those of
            training with --pipeline-validation-model)
        validation_views: views of each validation image, whose logits are averaged: 2 adds the
            mirror image, 6 also shifts both by a pixel in two directions

    pipeline parallelism:
        pipeline_splits: first layers of the second and later stages; or auto and the number of
            stages
        device_mapping: device of each stage
        pipeline_schedule: order in which stages run micro-batches
        activation_checkpointing: recompute the activations of a stage in the backward pass
        pipeline_validation_model: validate in the stages of training too (default: each device
            validates with the complete model)

    optimization:
        learning_rate: learning rate at the start of the schedule (default: 0.01 for a global batch
            of 32, and in proportion for others)
        momentum: momentum of sgd, lars or rmsprop (default: that of --optimizer-params)
        optimizer: name of the optimizer
        optimizer_params: parameters of the optimizer
        lr_schedule: learning-rate schedule; it lasts as long as the run unless
            --lr-schedule-params has another length
        lr_schedule_params: parameters of the schedule; learning rates in them are per sample of the
            batch
        lr_warmup_params: {"warmup_mode": shift or mask, "warmup_epochs": x}
        lr_staircase: change the learning rate only between epochs
        weight_decay: decoupled weight decay
        l2_regularization: L2 regularisation, added to the gradient
        clip_norm: maximum global norm of the gradient
        adaptive_clip: adaptive gradient clipping: maximum norm relative to the weights, for each
            output; 0 is off
        ema: momentum of a moving average of the weights, which is validated; 0 is off
        lookahead: number of updates between two synchronisations of Lookahead; 0 is off

    logs and checkpoints:
        logs_per_epoch: log lines per epoch; 1/2 is one every 2 epochs
        ckpts_per_epoch: checkpoints per epoch; 0 is none (default: 1, at a log line if there is
            one)
        first_ckpt_epoch: epochs until the first checkpoint
        checkpoint_output_dir: folder of checkpoints (default: inside the run's folder)
        checkpoints: write checkpoints; false is --ckpts-per-epoch 0
        ckpt_all_instances: each process of a launch writes checkpoints, to rank0, rank1, ... in
            their folder (default: only the first)
        state_every: interval at which the state for --resume is saved: epoch, a number of weight
            updates, a time such as 10m, or never
        clean_dir: delete the run's checkpoints after validation
        output_dir: folder of the run (default: runs/<model>-<dataset>-<time>)
        report: record programs, times and memory, for convoy report
        mlflow: log to MLflow, with the settings of MLflow
        wandb: log to Weights & Biases
        wandb_run_name: run name in Weights & Biases
        wandb_tags: run tags in Weights & Biases
        wandb_params: {"run_name": ..., "tags": [...]}, for the two flags above

    numerics:
        precision: compute and weight precision; auto is bf16.32 if the device is faster in it,
            else 32.32. The time of a step on a CPU relative to 32.32 is about 0.8 in bf16.32 with
            instructions for bfloat16, 1.0 without them, and 1.0 to 1.15 in 16.32
        loss_scale: static loss scale; 0 is off
        auto_loss_scale: dynamic loss scale
        stochastic_rounding: stochastic rounding of 16-bit weights
        fp_exceptions: stop when the loss is not finite
    """

    config: str | None = None
    config_path: str | None = None

    training: bool = True
    validation: bool = True
    checkpoint_input_dir: str | None = None
    resume: bool = False
    compile_only: bool = False
    mlperf_logging: bool = False
    sweep: bool = False
    target_accuracy: float = 0.759

    model: Annotated[str, Option(aliases=("model-name",))] = "toy_model"
    weights: str | None = None
    freeze_until: str | None = None
    norm_layer: Parameters = field(
        default_factory=lambda: {"name": "custom_batch_norm", "momentum": 0.9}
    )
    batch_norm_group: Annotated[Count, Option(aliases=("dbn-replica-group-size",))] = 1

    dataset: Annotated[str, Option(choices=(*DATASETS, FOLDER))] = "cifar10"
    dataset_path: str = "."
    image_size: Count = 128
    validation_split: Annotated[float, Field(gt=0, lt=1)] = 0.2
    classes: ListOf[str] | None = None
    pipeline_num_parallel: WholeNotNegative | None = None
    damaged_images: Literal["skip", "stop"] = "skip"
    synthetic_data: Annotated[
        Literal["host", "device"] | None, Option(synonyms={"cpu": "host", "ipu": "device"})
    ] = None
    shuffle: bool = True
    seed: Whole | None = None
    deterministic: bool = False
    eight_bit_transfer: bool = False
    accelerator_side_preprocess: bool = False
    normalisation: Normalisation | None = None

    augment: bool = True
    flip: Literal["random", "alternating"] = "random"
    crop_padding: WholeNotNegative | None = None
    crop_border: Border = "zeros"
    mixup: NotNegative = 0.0
    cutmix: NotNegative = 0.0
    rand_augment: Probability = 0.0
    random_erasing: Probability = 0.0
    label_smoothing: float | None = None

    micro_batch_size: Annotated[Count, Option(aliases=("batch-size",))] = 32
    num_replicas: Annotated[Count, Option(aliases=("replicas",))] = 1
    shard: Literal["optimizer", "weights"] | None = None
    gradient_accumulation: Annotated[
        Count | None, Option(aliases=("gradient-accumulation-count",))
    ] = None
    global_batch_size: Count | None = None
    weight_updates_per_epoch: Whole = -1
    num_epochs: Annotated[Count, Option(aliases=("epochs",))] = 1
    validation_micro_batch_size: Count | None = None
    validation_num_replicas: Count | None = None
    validation_views: Annotated[Whole, Option(choices=tuple(VIEWS))] = 1

    pipeline_splits: ListOf[str] = field(default_factory=list)
    device_mapping: ListOf[Whole] | None = None
    pipeline_schedule: Annotated[str, Option(choices=NAMES, synonyms=ALIASES)] = "gpipe"
    activation_checkpointing: Annotated[bool, Option(aliases=("recomputation",))] = False
    pipeline_validation_model: bool = False

    learning_rate: Annotated[Positive | None, Option(aliases=("lr",))] = None
    momentum: Probability | None = None
    optimizer: Literal["sgd", "lars", "rmsprop", "adam", "adamw"] = "sgd"
    optimizer_params: Parameters = field(default_factory=lambda: {"momentum": 0.9})
    lr_schedule: Literal["const", "cosine", "stepped", "polynomial"] = "cosine"
    lr_schedule_params: Parameters = field(
        default_factory=lambda: {"initial_learning_rate": 0.01 / 32}
    )
    lr_warmup_params: Parameters | None = None
    lr_staircase: bool = False
    weight_decay: NotNegative = 0.0
    l2_regularization: NotNegative = 0.0
    clip_norm: float | None = None
    adaptive_clip: NotNegative = 0.0
    ema: float = 0.0
    lookahead: WholeNotNegative = 0

    logs_per_epoch: ExactFraction = Fraction(1)
    ckpts_per_epoch: ExactFraction | None = None
    first_ckpt_epoch: float = 0.0
    checkpoint_output_dir: str | None = None
    checkpoints: bool | None = None
    ckpt_all_instances: bool = False
    state_every: str = "epoch"
    clean_dir: bool = False
    output_dir: str | None = None
    report: bool = False
    mlflow: bool = False
    wandb: bool = False
    wandb_run_name: str | None = None
    wandb_tags: ListOf[str] | None = None
    wandb_params: Parameters | None = None

    precision: Annotated[str, Option(choices=CHOICES)] = "32.32"
    loss_scale: Annotated[NotNegative, Option(aliases=("loss-scaling",))] = 0.0
    auto_loss_scale: Annotated[bool, Option(aliases=("auto-loss-scaling",))] = False
    stochastic_rounding: Annotated[
        Literal["off", "on", "replica_identical"],
        Option(synonyms={"replica_identical_only": "replica_identical"}),
    ] = "on"
    fp_exceptions: bool = False
