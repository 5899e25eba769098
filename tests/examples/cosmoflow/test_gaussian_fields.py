"""Gaussian random fields have the power spectrum of their cosmology."""

import numpy as np
import pytest

from cosmoflow import gaussian_fields
from cosmoflow.gaussian_fields import CENTRE, Cosmology, cosmology_of, growth, make_volume, power


def test_targets_scale_the_parameters_around_the_centre():
    assert cosmology_of((0, 0, 0, 0)) == pytest.approx(CENTRE)
    assert cosmology_of((1, -1, 0, 0.5)) == pytest.approx(
        (CENTRE.omega_m * 1.3, CENTRE.sigma_8 * 0.7, CENTRE.n_s, CENTRE.h * 1.15)
    )


def test_the_spectrum_follows_the_spectral_index_on_large_scales_and_turns_over():
    low = power(np.array([1e-5, 2e-5]), CENTRE)
    assert np.log2(low[1] / low[0]) == pytest.approx(CENTRE.n_s, abs=0.01)
    k = np.geomspace(1e-4, 10, 500)
    assert 0.008 < k[np.argmax(power(k, CENTRE))] < 0.03
    assert power(np.zeros(1), CENTRE) == 0


def test_growth_is_known_for_matter_alone_and_slower_with_dark_energy():
    assert growth(0, 0.3) == 1
    assert growth(3, 1.0) == pytest.approx(1 / 4, rel=1e-3)
    assert 1 / 4 < growth(3, 0.4) < growth(3, 0.2)


def test_a_field_has_the_requested_power_spectrum(rng):
    """By bins of wave numbers, within four standard errors of the mean."""
    size, side = 32, 64.0
    field, variance = gaussian_fields.gaussian_field(size, CENTRE, rng, side)
    along = 2 * np.pi * np.fft.fftfreq(size, side / size)
    k = np.sqrt(sum(part**2 for part in np.meshgrid(along, along, along, indexing="ij")))
    measured = np.abs(np.fft.fftn(field)) ** 2 * (side / size) ** 3 / size**3
    for low, high in ((0.3, 0.6), (0.6, 1.0), (1.0, 1.5)):
        waves = (k >= low) & (k < high)
        ratio = (measured[waves] / power(k[waves], CENTRE)).mean()
        assert abs(ratio - 1) < 4 * np.sqrt(2 / waves.sum())
    assert field.var() == pytest.approx(variance, rel=0.2)


def test_fluctuations_in_spheres_of_eight_have_the_requested_deviation():
    k = np.geomspace(1e-4, 20, 4000)
    x = 8 * k
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    for sigma_8 in (0.6, 1.0):
        spectrum = power(k, Cosmology(0.3, sigma_8, 1.0, 0.7))
        found = np.trapezoid(spectrum * window**2 * k**2, k) / (2 * np.pi**2)
        assert np.sqrt(found) == pytest.approx(sigma_8, rel=1e-3)


def test_a_volume_is_counts_that_clump_with_time(rng):
    volume = make_volume(16, (0, 0, 0, 0), rng, side=64)
    assert (volume.dtype, volume.shape) == (np.dtype("<i2"), (16, 16, 16, 4))
    assert volume.min() >= 0
    # 32 particles per voxel at every redshift; they clump more at lower redshifts.
    np.testing.assert_allclose(volume.mean((0, 1, 2)), 32, rtol=0.35)
    spread = volume.std((0, 1, 2))
    assert list(spread) == sorted(spread, reverse=True)
    again = make_volume(16, (0, 0, 0, 0), np.random.default_rng(0), side=64)
    np.testing.assert_array_equal(volume, again)


@pytest.mark.parametrize("target", range(4))
def test_every_target_changes_the_volume(target):
    low, high = np.zeros(4), np.zeros(4)
    low[target], high[target] = -1, 1
    volumes = [make_volume(16, t, np.random.default_rng(1)) for t in (low, high)]
    assert (volumes[0] != volumes[1]).mean() > 0.3
