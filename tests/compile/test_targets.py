import pytest
from convoy.compile.failures import TargetError
from convoy.compile.targets import GPUS, TPUS, gpu_configuration, parse_target


@pytest.mark.parametrize(
    ("name", "kind", "shape", "devices"),
    [
        ("tpu:v5e:4x4", "v5e", (4, 4), 16),
        ("TPU:v6e:16x16", "v6e", (16, 16), 256),
        ("tpu:v5p:4x4x4", "v5p", (4, 4, 4), 64),
        ("tpu:v5e:1x1", "v5e", (1, 1), 1),
        ("gpu:h100:8", "h100", (1, 8), 8),
        ("gpu:h100:4x8", "h100", (4, 8), 32),
    ],
)
def test_a_name_gives_kind_and_number_of_devices(name, kind, shape, devices):
    target = parse_target(name)
    assert (target.name, target.kind, target.shape, target.devices) == (name, kind, shape, devices)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("v5e:4x4", "v5e:4x4 is not a target. Pass a platform, a kind and a number of devices"),
        ("tpu:v5e", "such as tpu:v5e:4x4 or gpu:h100:8"),
        ("tpu:v5x:4x4", "'v5x' is not one of v5e, v5p, v6e"),
        ("gpu:h1000:8", "'h1000' is not one of a100, h100, h200, l4. Did you mean h100"),
        ("tpu:v5e:16", "has 1 axes, but a topology of v5e has 2. Pass for example tpu:v5e:4x4"),
        ("tpu:v5p:4x4", "has 2 axes, but a topology of v5p has 3. Pass for example tpu:v5p:4x4x4"),
        ("tpu:v5e:3x4", "a host has 2x2 chips, which do not divide 3x4"),
        ("tpu:v5e:0x4", "'0x4' is not a size"),
        ("tpu:v5e:64x64", "a slice of v5e has at most 256 chips, but 64x64 are 4,096. Pass"),
        ("tpu:v5p:128x128x128", "at most 6,144 chips"),
        ("gpu:h100:eight", "'eight' is not a size"),
        ("gpu:h100:2x4x8", "or hosts and the GPUs of each (gpu:h100:4x8)"),
    ],
)
def test_a_bad_name_says_what_to_pass(name, says):
    with pytest.raises(TargetError) as error:
        parse_target(name)
    assert says in str(error.value)
    assert name in str(error.value)


def test_jax_uses_three_quarters_of_a_gpu_and_all_that_xla_reports_of_a_tpu():
    assert parse_target("gpu:h100:8").memory == GPUS["h100"].memory * 3 // 4
    assert parse_target("tpu:v5e:2x2").memory == TPUS["v5e"].memory


def test_the_description_of_a_gpu_has_its_capability_and_memory():
    text = gpu_configuration(GPUS["l4"])
    assert "major: 8 minor: 9" in text
    assert f"device_memory_size: {24 * 2**30}" in text
    assert text.count("{") == text.count("}")
