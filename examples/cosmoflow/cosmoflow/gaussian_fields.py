"""Synthetic matter distributions from four cosmological parameters.

A Gaussian random field with the power spectrum of a cosmology is scaled to several redshifts and
exponentiated, and particle counts are drawn from it. This is no simulation: it gives a network
something to learn whose difficulty is known.

The transfer function is that of Bardeen, Bond, Kaiser and Szalay (1986) for cold dark matter, the
growth factor that of Carroll, Press and Turner (1992). Lengths are in Mpc/h.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cosmoflow.volume_files import STORED

REDSHIFTS = (0.0, 0.5, 1.5, 3.0)
"""Redshift of each channel."""
SIDE = 128.0
"""Side length of a volume."""
PARTICLES = 32.0
"""Mean number of particles in a voxel."""
_LARGEST = float(np.iinfo(STORED).max)
# The radius of the spheres in the definition of sigma_8.
_RADIUS = 8.0


class Cosmology(NamedTuple):
    """Parameters of a universe.

    Attributes:
        omega_m: fraction of the energy density that is matter, Ω_m.
        sigma_8: standard deviation of the density in spheres of radius 8, σ_8.
        n_s: spectral index of the primordial fluctuations, n_s.
        h: Hubble constant in units of 100 km/s/Mpc.
    """

    omega_m: float
    sigma_8: float
    n_s: float
    h: float


CENTRE = Cosmology(0.3089, 0.8159, 0.9667, 0.6774)
SPREAD = 0.3
NAMES = ("Omega_m", "sigma_8", "n_s", "H_0")


def cosmology_of(targets: Sequence[float]) -> Cosmology:
    """Return the parameters for four targets from -1 to 1: 30 % around those of our universe."""
    return Cosmology(*(np.array(CENTRE) * (1 + SPREAD * np.asarray(targets))).tolist())


def power(k: np.ndarray, cosmology: Cosmology) -> np.ndarray:
    """Return the power spectrum at redshift 0; zero at wave number 0.

    Args:
        k: wave numbers.
        cosmology: parameters of the universe.
    """
    samples = np.geomspace(1e-4, 20, 2000)
    x = samples * _RADIUS
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    spectrum = _shape(samples, cosmology) * (window * samples) ** 2 / (2 * np.pi**2)
    variance = np.trapezoid(spectrum, samples)
    return cosmology.sigma_8**2 / variance * _shape(k, cosmology)


def _shape(k: np.ndarray, cosmology: Cosmology) -> np.ndarray:
    positive = np.maximum(k, 1e-12)
    q = positive / (cosmology.omega_m * cosmology.h)
    sums = 1 + 3.89 * q + (16.1 * q) ** 2 + (5.46 * q) ** 3 + (6.71 * q) ** 4
    transfer = np.log1p(2.34 * q) / (2.34 * q) * sums**-0.25
    return np.where(k > 0, positive**cosmology.n_s * transfer**2, 0.0)


def growth(redshift: float, omega_m: float) -> float:
    """Return the growth factor of fluctuations, relative to redshift 0."""

    def unscaled(z: float) -> float:
        expansion = omega_m * (1 + z) ** 3 + 1 - omega_m
        matter, dark_energy = omega_m * (1 + z) ** 3 / expansion, (1 - omega_m) / expansion
        correction = (1 + matter / 2) * (1 + dark_energy / 70)
        return 2.5 * matter / (matter ** (4 / 7) - dark_energy + correction) / (1 + z)

    return unscaled(redshift) / unscaled(0.0)


def gaussian_field(
    size: int, cosmology: Cosmology, rng: np.random.Generator, side: float = SIDE
) -> tuple[np.ndarray, float]:
    """Return a random field with the power spectrum at redshift 0, and its expected variance.

    Args:
        size: voxels along each side.
        cosmology: parameters of the universe.
        rng: random generator.
        side: side length of the cube.
    """
    k = _wave_numbers(size, side)
    spectrum = power(k, cosmology) * (size / side) ** 3
    noise = np.fft.rfftn(rng.standard_normal((size, size, size), np.float32))
    field = np.fft.irfftn(noise * np.sqrt(spectrum), (size, size, size), (0, 1, 2))
    # rfftn keeps half of the waves: all but the first and last plane stand for two.
    waves = np.full(k.shape[-1], 2.0)
    waves[[0, -1] if size % 2 == 0 else [0]] = 1.0
    return field, float((spectrum * waves).sum() / size**3)


def make_volume(
    size: int,
    targets: Sequence[float],
    rng: np.random.Generator,
    *,
    side: float = SIDE,
) -> np.ndarray:
    """Return the number of particles in each voxel as 16-bit integers, a channel per redshift.

    Args:
        size: voxels along each side.
        targets: four numbers from -1 to 1.
        rng: random generator.
        side: side length of the cube.
    """
    cosmology = cosmology_of(targets)
    field, variance = gaussian_field(size, cosmology, rng, side)
    volume = np.empty((size, size, size, len(REDSHIFTS)), STORED)
    for channel, redshift in enumerate(REDSHIFTS):
        grown = growth(redshift, cosmology.omega_m)
        expected = PARTICLES * np.exp(grown * field - grown**2 * variance / 2)
        found = rng.poisson(np.minimum(expected, _LARGEST))
        volume[..., channel] = np.minimum(found, _LARGEST)
    return volume


@functools.cache
def _wave_numbers(size: int, side: float) -> np.ndarray:
    along = 2 * np.pi * np.fft.fftfreq(size, side / size)
    last = 2 * np.pi * np.fft.rfftfreq(size, side / size)
    return np.sqrt(along[:, None, None] ** 2 + along[None, :, None] ** 2 + last**2)
