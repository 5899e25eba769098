from dataclasses import replace
from fractions import Fraction

import pytest
from convoy.cli.train import parse
from convoy.train.flags import Options
from convoy.train.graphcore_flags import GraphcoreOptions
from convoy.train.learning_rate import make_schedule
from convoy.train.run_settings import make_run_settings


@pytest.fixture(autouse=True)
def fresh_start():
    """Nothing here makes a layer, so nothing has to be cleared."""


IMAGENET = 1_281_167


def recipe(name):
    return make_run_settings(parse(["--config", name]))


def peak(settings):
    options = replace(settings.options, lr_warmup_params=None, lr_staircase=False)
    batch, updates = settings.batch.global_batch, settings.events.updates_per_epoch
    return float(make_schedule(options, batch, updates)(0))


@pytest.mark.parametrize(
    ("name", "batch", "accumulation", "updates", "rate"),
    [
        ("resnet8_test", 8, 1, 6250, 0.0008),
        ("resnet8_test_lars", 8, 1, 6250, 0.001),
        ("resnet8_16ipus_bn", 2000, 5, 25, 0.2441),
        ("resnet50_16ipus_16k_bn_pipeline", 16384, 256, 78, 2.0),
        ("resnet50_16ipus_8k_bn_pipeline", 8192, 128, 156, 1.0),
        ("resnet56_16ipus_8k_bn_pipeline", 8192, 128, 156, 1.0),
        ("resnet50_16ipus_8k_gn_pipeline", 8192, 128, 156, 1.0),
        ("resnet50_mlperf_bs16", 2304, 9, 556, 4.588),
        ("resnet50_mlperf_pod16_bs20", 1920, 6, 667, 3.823),
        ("resnet50_mlperf_pod4_bs20", 480, 6, 2669, 0.956),
        ("resnet50_mlperf_pod16_lars", 3456, 12, 370, 10.525),
        ("resnet50_infer_bs1", 1, 1, IMAGENET, 0.00199132),
        ("resnet50_infer_bs16", 16, 1, 80072, 0.031861),
        ("resnet50_infer_bs32", 32, 1, 40036, 0.063722),
    ],
)
def test_recipes_give_the_numbers_of_graphcores(name, batch, accumulation, updates, rate):
    settings = recipe(name)
    assert settings.batch.global_batch == batch
    assert settings.batch.gradient_accumulation == accumulation
    assert settings.events.updates_per_epoch == updates
    assert peak(settings) == pytest.approx(rate, rel=2e-4)


def test_the_fast_recipe_has_airbenchs_numbers():
    settings = recipe("cifar10_fast")
    assert (settings.batch.global_batch, settings.events.updates_per_epoch) == (1024, 48)
    assert peak(settings) == pytest.approx(11.5 / (1 + 1 / (1 - 0.85)), rel=1e-3)
    assert settings.options.l2_regularization == pytest.approx(0.0153 / 11.5, rel=2e-3)
    assert (settings.info.crop_padding, settings.info.normalisation) == (2, "cifar10")


def test_images_are_treated_in_the_data_sets_own_way_unless_it_is_said_otherwise():
    info = make_run_settings(Options()).info
    assert (info.crop_padding, info.normalisation) == (4, "standardise")
    info = make_run_settings(Options(crop_padding=0, normalisation="scale")).info
    assert (info.crop_padding, info.normalisation) == (0, "scale")


def test_stages_of_recipes():
    assert (recipe("resnet50_16ipus_8k_bn_pipeline").devices) == 16
    on_one_device = recipe("resnet50_mlperf_pod16_bs20")
    assert (on_one_device.stages, on_one_device.devices) == (7, 16)
    assert not on_one_device.in_pipeline


def test_a_global_batch_that_does_not_divide_is_said():
    notes = recipe("resnet50_mlperf_pod16_lars").notes
    assert any("3456 is used" in note for note in notes)


def test_validation_takes_all_devices_of_the_training():
    settings = recipe("resnet50_16ipus_8k_bn_pipeline")
    assert (settings.validation_replicas, settings.validation_batch) == (16, 16)
    settings = recipe("resnet50_mlperf_bs16")
    assert (settings.validation_replicas, settings.validation_batch) == (16, 108)


def test_validation_in_stages_takes_the_replicas_of_the_training():
    settings = recipe("resnet56_16ipus_8k_bn_pipeline")
    assert settings.validates_in_stages
    assert (settings.validation_replicas, settings.validation_devices) == (4, 16)
    settings = make_run_settings(
        Options(pipeline_splits=["a"], pipeline_validation_model=True, validation_num_replicas=3)
    )
    assert (settings.validation_replicas, settings.validation_devices) == (3, 6)
    settings = make_run_settings(Options(pipeline_validation_model=True, num_replicas=2))
    assert (settings.validation_replicas, settings.validation_devices) == (2, 2)
    (note,) = settings.notes
    assert "--pipeline-validation-model (there are no stages without --pipeline-splits)" in note


def test_flags_of_earlier_releases_stand_for_todays():
    made = make_run_settings(
        Options(checkpoints=False, wandb_params={"run_name": "first", "tags": ["a", "b"]})
    )
    assert (made.options.ckpts_per_epoch, made.events.per_checkpoint) == (0, 0)
    assert (made.options.wandb_run_name, made.options.wandb_tags) == ("first", ["a", "b"])
    made = make_run_settings(
        Options(checkpoints=True, wandb_run_name="mine", wandb_params={"run_name": "first"})
    )
    assert (made.options.ckpts_per_epoch, made.options.wandb_run_name) == (None, "mine")


def test_what_has_no_effect_is_named_once():
    (note,) = make_run_settings(GraphcoreOptions(half_partials=True, conv_dithering=True)).notes
    assert note.count("--half-partials") == note.count("--conv-dithering") == 1
    (note,) = make_run_settings(Options(pipeline_schedule="1f1b")).notes
    assert "--pipeline-schedule (there are no stages without --pipeline-splits)" in note
    (note,) = make_run_settings(Options(ckpt_all_instances=True)).notes
    assert "--ckpt-all-instances (there is one process)" in note
    assert make_run_settings(Options()).notes == ()


def test_deterministic_turns_shuffling_off_and_draws_a_seed():
    settings = make_run_settings(Options(deterministic=True))
    assert not settings.options.shuffle
    assert settings.options.seed is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation_checkpointing": True}, "--activation-checkpointing is for stages"),
        ({"logs_per_epoch": Fraction(-1)}, "--logs-per-epoch -1 is negative"),
        ({"logs_per_epoch": Fraction(1, 4), "num_epochs": 6}, "4.0 epochs a time for 6"),
        ({"ckpts_per_epoch": Fraction(-1)}, "--ckpts-per-epoch -1 is negative"),
        ({"first_ckpt_epoch": -1.0}, "--first-ckpt-epoch -1.0 is negative"),
        (
            {"pipeline_splits": ["a", "b", "c"], "device_mapping": [0, 1, 2, 4]},
            "--device-mapping 0 1 2 4 leaves out a device",
        ),
        ({"device_mapping": [0, 1]}, "--device-mapping 0 1 has 2 entries, but .* has 1 stage\\."),
        ({"eight_bit_transfer": True}, "Pass --accelerator-side-preprocess"),
        ({"batch_norm_group": 2}, "2 does not divide 1 replica."),
        (
            {"batch_norm_group": 2, "num_replicas": 2, "pipeline_splits": ["a"]},
            "needs replicas of one device",
        ),
        (
            {"shard": "weights", "num_replicas": 2, "pipeline_splits": ["a"]},
            "--shard weights is not needed with --pipeline-splits",
        ),
        ({"norm_layer": {"name": "layer_norm"}}, "'layer_norm' is not one of"),
        ({"norm_layer": {"name": "custom_batch_norm"}}, "needs a momentum"),
        ({"norm_layer": {"name": "group_norm"}}, "needs one of num_groups and channels_per_group"),
        (
            {"gradient_accumulation": 2, "global_batch_size": 4},
            "were both given",
        ),
        ({"micro_batch_size": 0}, "--micro-batch-size 0: pass 1 or more"),
        (
            {"micro_batch_size": 60_000},
            "50000 images cannot fill a weight update of 60000: --batch-size 60000 x 1 replica x 1 "
            "accumulated. Make one of them smaller, such as --batch-size.",
        ),
        ({"training": False, "validation": False}, "nothing to do"),
        ({"training": False, "compile_only": True}, "--compile-only compiles the training"),
        ({"checkpoints": False, "ckpts_per_epoch": Fraction(2)}, "--ckpts-per-epoch is 2"),
        ({"ckpt_all_instances": True, "checkpoints": False}, "the run writes no checkpoints"),
        ({"wandb_params": {"name": "x"}}, "'name' is unknown. Pass run_name and tags"),
        ({"lookahead": -1}, "--lookahead -1: pass 0 or more"),
        ({"mixup": -1.0}, "--mixup -1.0: pass 0 or more"),
        ({"weight_updates_per_epoch": 0}, "--weight-updates-per-epoch 0"),
        (
            {"validation_views": 2, "synthetic_data": "device"},
            "--validation-views 2: pass 1, because --synthetic-data device",
        ),
        ({"crop_padding": -1}, "--crop-padding -1: pass 0 or more"),
        ({"crop_padding": 32}, "less than the 32 pixels of an image"),
        (
            {"dataset": "mnist", "normalisation": "cifar10"},
            "--normalisation cifar10 is for images of 3 channels, but those of mnist have 1",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_run_settings(Options(**options))


SEED = (
    "--model cifar_resnet8 --num-epochs {epochs} --precision 16.16 --micro-batch-size 8 "
    "--validation False --half-partials True --gradient-accumulation 8 --logs-per-epoch {logs}"
)


def handbook(**values):
    return parse(SEED.format(**values).split(), schema=GraphcoreOptions)


@pytest.mark.parametrize(
    ("logs", "calls", "warned"),
    [("1", 6, False), ("2", 6, True), ("10", 66, True), ("1/2", 3, False), ("1/3", 2, False)],
)
def test_the_commands_of_the_handbook_make_as_many_device_calls_as_it_says(logs, calls, warned):
    settings = make_run_settings(handbook(epochs=6, logs=logs))
    assert settings.events.updates // settings.events.per_call == calls
    assert settings.steps_per_execution == 6 * 6248 // calls
    assert any("closest possible" in note for note in settings.notes) == warned


def test_the_handbooks_run_without_logs_is_one_device_call_and_says_so():
    settings = make_run_settings(handbook(epochs=6, logs=0))
    assert settings.events.per_call == settings.events.updates
    assert any("entire run" in note for note in settings.notes)


def test_the_handbooks_wrong_command_has_its_words():
    with pytest.raises(
        ValueError, match=r"^It is not possible to log 2\.0 epochs a time for 5 epo"
    ):
        make_run_settings(handbook(epochs=5, logs="1/2"))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_automatic_precision_is_settled_once_and_noted(monkeypatch, policy):
    monkeypatch.setattr("convoy.devices.fastest_precision", lambda device: policy)
    settings = make_run_settings(parse(["--dataset", "digits", "--precision", "auto"]))
    assert settings.options.precision == policy
    assert f"--precision auto is {policy} here." in settings.notes


def test_a_large_part_that_is_left_out_of_each_epoch_is_said():
    options = Options(micro_batch_size=32)
    (note,) = make_run_settings(options, 90).notes
    assert note == (
        "Each epoch leaves out 26 of 90 images, because a weight update takes 32. Pass another "
        "--batch-size to use more."
    )
    assert not make_run_settings(options, 1000).notes  # 8 images
    assert not make_run_settings(replace(options, weight_updates_per_epoch=1), 90).notes
    assert not make_run_settings(replace(options, training=False), 90).notes
