"""Every flag of `convoy train`: its name, type, default, meaning and group, in one place.

A field's name is the flag's, with `_` for `-`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from functools import partial
from typing import Any, get_args

from convoy.data.augment import Border
from convoy.data.catalog import DATASETS, Normalisation
from convoy.flags import Flag, boolean, flag, flag_of, fraction, mapping, number, text, whole
from convoy.layers.views import WEIGHTS as VIEWS
from convoy.pipeline import ALIASES, NAMES, canonical_name
from convoy.precision import KNOWN as PRECISIONS

_recipe = partial(flag, group="recipe")
_phase = partial(flag, group="phases")
_model = partial(flag, group="model")
_data = partial(flag, group="data")
_batch = partial(flag, group="batch, replicas and pipeline")
_learning = partial(flag, group="learning")
_event = partial(flag, group="logs and checkpoints")
_number = partial(flag, group="numbers")
_ipu = partial(flag, group="accepted, without effect here")

_XLA = "XLA decides"
_IPU = "there is no IPU to steer"
_EXACT = "norms are always computed in two passes"


@dataclass(frozen=True)
class Options:
    """What a run was asked for."""

    config: str | None = _recipe(None, "name of a recipe in the recipe file", text)
    config_path: str | None = _recipe(None, "recipe file (default: the one that ships)", text)

    training: bool = _phase(True, "train", boolean)
    validation: bool = _phase(True, "validate", boolean)
    checkpoint_input_dir: str | None = _phase(
        None, "validate the checkpoints of this folder instead of those of the run", text
    )
    resume: bool = _phase(False, "resume the run in --output-dir if it was stopped", boolean)
    compile_only: bool = _phase(
        False, "stop after the first device call; its program stays in the program cache", boolean
    )
    mlperf_logging: bool = _phase(
        False, "train an epoch, put the weights back, then start the clock", boolean
    )
    sweep: bool = _phase(False, "report when the target accuracy was reached", boolean)
    target_accuracy: float = _phase(0.759, "the accuracy that a sweep aims at", number)

    model_name: str = _model(
        "toy_model",
        "toy_model, toy_model_bn, mnist_cnn, cifar_fast, cifar_resnet8/20/32/44/56, "
        "resnet18/34/50/101/152, a name in keras.applications, or module:function of your own",
        text,
    )
    norm_layer: dict[str, Any] = _model(
        {"name": "custom_batch_norm", "momentum": 0.97},
        "batch_norm, custom_batch_norm (statistics advance once per weight update) or group_norm, "
        "with parameters",
        mapping,
    )
    dbn_replica_group_size: int = _model(1, "replicas that share batch-norm statistics", whole)

    dataset: str = _data("cifar10", "the data set", text, choices=tuple(DATASETS))
    dataset_path: str = _data(".", "folder of the data set", text)
    pipeline_num_parallel: int | None = _data(
        None,
        "processes that decode image files, at most (and by default) one for each core; 0 is none "
        "but this one",
        whole,
    )
    damaged_images: str = _data(
        "skip",
        "leave out files and records that cannot be read, and name them; or stop",
        text,
        choices=("skip", "stop"),
    )
    synthetic_data: str | None = _data(
        None,
        "random images, made on the host (cpu, host) or on the device (ipu, device)",
        text,
        choices=("cpu", "host", "ipu", "device"),
    )
    shuffle: bool = _data(True, "shuffle the training data in every epoch", boolean)
    seed: int | None = _data(None, "seed of all random numbers (default: drawn)", whole)
    deterministic: bool = _data(False, "the same data in the same order; no shuffling", boolean)
    eight_bit_transfer: bool = _data(False, "move images to the device as bytes", boolean)
    accelerator_side_preprocess: bool = _data(
        False, "normalise (and flip) on the device, as the model's first layer", boolean
    )
    normalisation: str | None = _data(
        None,
        "divide by 255, take each image's mean and deviation, or those of the channels of a data "
        "set (default: the data set's own way)",
        text,
        choices=get_args(Normalisation),
    )
    augment: bool = _data(True, "random crops and flips, where the data set has them", boolean)
    flip: str = _data(
        "random",
        "mirror images at random, or alternating: each in every second epoch",
        text,
        choices=("random", "alternating"),
    )
    crop_padding: int | None = _data(
        None, "pixels around an image that is cropped (default: the data set's own)", whole
    )
    crop_border: str = _data("zeros", "what these pixels are", text, choices=get_args(Border))
    mixup: float = _data(0.0, "mix pairs of images; alpha of the Beta distribution", number)
    cutmix: float = _data(0.0, "paste a part of another image; alpha", number)
    rand_augment: float = _data(0.0, "RandAugment; strength from 0 to 1", number)
    random_erasing: float = _data(0.0, "blank a rectangle, with this probability", number)
    label_smoothing: float | None = _data(None, "share of the label given to all classes", number)

    micro_batch_size: int = _batch(1, "samples of one replica at a time", whole)
    num_replicas: int = _batch(1, "copies of the model, each with its share of the data", whole)
    gradient_accumulation_count: int | None = _batch(
        None,
        "micro-batches of a replica per weight update (default: 1)",
        whole,
    )
    global_batch_size: int | None = _batch(
        None, "samples per weight update, instead of the accumulation count", whole
    )
    weight_updates_per_epoch: int = _batch(-1, "-1 is as many as the data gives", whole)
    num_epochs: int = _batch(1, "epochs", whole)
    pipeline_splits: list[str] = _batch(
        [],
        "layers at which the second and later stages begin; or auto and how many stages",
        text,
        many=True,
    )
    device_mapping: list[int] | None = _batch(None, "the device of each stage", whole, many=True)
    pipeline_schedule: str = _batch(
        "gpipe",
        "pipeline schedule: the order in which stages run micro-batches",
        canonical_name,
        choices=(*NAMES, *ALIASES),
    )
    recomputation: bool = _batch(
        False, "compute a stage's activations again instead of keeping them", boolean
    )
    validation_micro_batch_size: int | None = _batch(None, "default: micro-batch-size", whole)
    validation_num_replicas: int | None = _batch(
        None, "default: all devices of the training, each with the whole model", whole
    )
    validation_views: int = _batch(
        1,
        "of each held-out image, over which logits are averaged: 2 with its mirror image, 6 with "
        "both shifted by a pixel in two directions too",
        whole,
        choices=tuple(map(str, VIEWS)),
    )

    optimizer: str = _learning(
        "sgd", "the optimizer", text, choices=("sgd", "lars", "rmsprop", "adam", "adamw")
    )
    optimizer_params: dict[str, Any] = _learning({"momentum": 0}, "its parameters", mapping)
    lr_schedule: str = _learning(
        "const",
        "how the learning rate changes",
        text,
        choices=("const", "cosine", "stepped", "polynomial"),
    )
    lr_schedule_params: dict[str, Any] = _learning(
        {"initial_learning_rate": 0.0001}, "its parameters; per sample of the batch", mapping
    )
    lr_warmup_params: dict[str, Any] | None = _learning(
        None, '{"warmup_mode": shift or mask, "warmup_epochs": x}', mapping
    )
    lr_staircase: bool = _learning(False, "change the learning rate only between epochs", boolean)
    weight_decay: float = _learning(
        0.0, "weight decay applied outside the optimizer (decoupled)", number
    )
    l2_regularization: float = _learning(0.0, "weight decay added to the gradient", number)
    clip_norm: float | None = _learning(None, "limit on the norm of the whole gradient", number)
    adaptive_clip: float = _learning(
        0.0, "limit on each output's gradient norm, relative to its weights; 0 is none", number
    )
    ema: float = _learning(
        0.0, "average the weights, with this momentum, and validate the average", number
    )
    lookahead: int = _learning(
        0, "pull weights towards their average after every N updates; 0 is never", whole
    )

    logs_per_epoch: Fraction = _event(Fraction(1), "how often; 1/2 is every 2nd epoch", fraction)
    ckpts_per_epoch: Fraction | None = _event(
        None, "how often; 0 is never (default: once an epoch, if there is a log event)", fraction
    )
    first_ckpt_epoch: float = _event(0.0, "epochs until the first checkpoint", number)
    checkpoint_output_dir: str | None = _event(
        None, "where checkpoints go (default: in the run's folder)", text
    )
    state_every: str = _event(
        "epoch",
        "how often all that --resume needs is written: epoch, a number of weight updates, a time "
        "such as 10m, or never",
        text,
    )
    clean_dir: bool = _event(False, "delete the run's checkpoints after validation", boolean)
    output_dir: str | None = _event(
        None, "the run's folder (default: runs/<model>-<dataset>-<time>)", text
    )
    report: bool = _event(
        False, "record programs, times and memory in the run's folder, for convoy report", boolean
    )
    mlflow: bool = _event(False, "log to MLflow, where its own settings say", boolean)
    wandb: bool = _event(False, "log to Weights & Biases", boolean)
    wandb_run_name: str | None = _event(None, "name of the run there", text)
    wandb_tags: list[str] | None = _event(None, "tags of the run there", text, many=True)

    precision: str = _number(
        "16.16", "computing.updating, in bits", text, choices=tuple(PRECISIONS)
    )
    loss_scaling: float = _number(0.0, "factor on the loss; 0 is off", number)
    auto_loss_scaling: bool = _number(False, "adjust the loss scale while training", boolean)
    stochastic_rounding: str = _number(
        "ON",
        "rounding of 16-bit weights",
        text,
        choices=("OFF", "ON", "REPLICA_IDENTICAL_ONLY"),
    )
    fp_exceptions: bool = _number(False, "stop when the loss is not finite", boolean)

    on_demand: bool = _ipu(True, "attach late", boolean, no_effect=_IPU)
    ckpt_all_instances: bool = _ipu(
        False, "checkpoints of every process", boolean, no_effect="there is one process"
    )
    accelerator_side_reduction: bool = _ipu(
        False,
        "reduce metrics on the device",
        boolean,
        no_effect="metrics are always reduced on the device",
    )
    optimizer_state_offloading: bool = _ipu(
        True, "optimizer state off the chip", boolean, no_effect=_IPU
    )
    nanoo: bool = _ipu(
        False, "NaN on overflow", boolean, no_effect="overflow is always infinite, as in IEEE 754"
    )
    fused_preprocessing: bool = _ipu(False, "fused normalising", boolean, no_effect=_XLA)
    half_partials: bool = _ipu(False, "sums in 16 bits", boolean, no_effect=_XLA)
    internal_exchange_optimization_target: str | None = _ipu(
        None, "compiler target", text, choices=("cycles", "memory", "balanced"), no_effect=_IPU
    )
    max_cross_replica_buffer_size: int = _ipu(
        0, "bytes of gradients per exchange", whole, no_effect=_IPU
    )
    max_reduce_many_buffer_size: int = _ipu(0, "bytes per reduction", whole, no_effect=_IPU)
    conv_dithering: bool = _ipu(False, "dither convolutions", boolean, no_effect=_IPU)
    gather_conv_output: bool = _ipu(False, "gather outputs", boolean, no_effect=_IPU)
    min_remote_tensor_size: int = _ipu(128, "bytes kept on the chip", whole, no_effect=_IPU)
    stable_norm: bool = _ipu(False, "stable norm statistics", boolean, no_effect=_EXACT)
    available_memory_proportion: list[float] = _ipu(
        [], "memory for convolutions", number, many=True, no_effect=_IPU
    )
    scheduling_algorithm: str = _ipu(
        "CHOOSE_BEST",
        "compiler schedule",
        text,
        choices=("CHOOSE_BEST", "CLUSTERING", "POST_ORDER", "LOOK_AHEAD", "SHORTEST_PATH"),
        no_effect=_IPU,
    )
    prefetch_depth: int = _ipu(1, "batches ahead", whole, no_effect="the engine decides")
    pipeline_validation_model: bool = _ipu(
        False,
        "validate in stages",
        boolean,
        no_effect="validation runs the whole model on every device, with the same result",
    )


FLAGS: dict[str, Flag] = {
    field.name.replace("_", "-"): flag_of(field.metadata) for field in fields(Options)
}
