"""Volumes that are shaped like matter in the universe, made from four numbers.

A Gaussian random field whose power spectrum follows from a cosmology is grown to several
redshifts, made positive (its exponential), and particles are thrown into it. It is no simulation:
it is there so that a network has something to learn whose difficulty is known.

The transfer function is that of Bardeen, Bond, Kaiser and Szalay (1986) for cold dark matter, and
the growth that of Carroll, Press and Turner (1992). Lengths are in Mpc/h.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cosmoflow.volume_files import STORED

REDSHIFTS = (0.0, 0.5, 1.5, 3.0)
"""Of the channels."""
SIDE = 128.0
"""Of a volume."""
PARTICLES = 32.0
"""In a voxel, in the mean."""
_LARGEST = float(np.iinfo(STORED).max)
_SPHERE = 8.0


class Cosmology(NamedTuple):
    """What a universe is made of.

    Attributes:
        matter: its share of the energy, Ω_m.
        clumping: deviation of the density in spheres with a radius of 8, σ_8.
        tilt: of the first power spectrum, n_s.
        hubble: the expansion, in 100 km/s/Mpc.
    """

    matter: float
    clumping: float
    tilt: float
    hubble: float


CENTRE = Cosmology(0.3089, 0.8159, 0.9667, 0.6774)
SPREAD = 0.3
NAMES = ("Omega_m", "sigma_8", "n_s", "H_0")


def cosmology(targets: Sequence[float]) -> Cosmology:
    """Return what four targets from -1 to 1 stand for: 30 % around the universe that we live in."""
    return Cosmology(*(np.array(CENTRE) * (1 + SPREAD * np.asarray(targets))).tolist())


def power(k: np.ndarray, universe: Cosmology) -> np.ndarray:
    """Return the power spectrum today at some wave numbers; none where they are zero."""
    lengths = np.geomspace(1e-4, 20, 2000)
    x = lengths * _SPHERE
    window = 3 * (np.sin(x) - x * np.cos(x)) / x**3
    spectrum = _shape(lengths, universe) * (window * lengths) ** 2 / (2 * np.pi**2)
    variance = np.trapezoid(spectrum, lengths)
    return universe.clumping**2 / variance * _shape(k, universe)


def _shape(k: np.ndarray, universe: Cosmology) -> np.ndarray:
    there = np.maximum(k, 1e-12)
    q = there / (universe.matter * universe.hubble)
    sums = 1 + 3.89 * q + (16.1 * q) ** 2 + (5.46 * q) ** 3 + (6.71 * q) ** 4
    transfer = np.log1p(2.34 * q) / (2.34 * q) * sums**-0.25
    return np.where(k > 0, there**universe.tilt * transfer**2, 0.0)


def growth(redshift: float, matter: float) -> float:
    """Return how large fluctuations were, as a share of what they are today."""

    def unscaled(z: float) -> float:
        expansion = matter * (1 + z) ** 3 + 1 - matter
        m, rest = matter * (1 + z) ** 3 / expansion, (1 - matter) / expansion
        return 2.5 * m / (m ** (4 / 7) - rest + (1 + m / 2) * (1 + rest / 70)) / (1 + z)

    return unscaled(redshift) / unscaled(0.0)


def gaussian_field(
    size: int, universe: Cosmology, rng: np.random.Generator, side: float = SIDE
) -> tuple[np.ndarray, float]:
    """Return a field with the power spectrum of today, and the variance that is expected of it.

    Args:
        size: voxels along each side.
        universe: decides the power spectrum.
        rng: decides everything else.
        side: length of the cube.
    """
    k = _wave_numbers(size, side)
    spectrum = power(k, universe) * (size / side) ** 3
    noise = np.fft.rfftn(rng.standard_normal((size, size, size), np.float32))
    field = np.fft.irfftn(noise * np.sqrt(spectrum), (size, size, size), (0, 1, 2))
    # All but the first and the last plane of the last axis stand for two waves.
    waves = np.full(k.shape[-1], 2.0)
    waves[[0, -1] if size % 2 == 0 else [0]] = 1.0
    return field, float((spectrum * waves).sum() / size**3)


def make_volume(
    size: int,
    targets: Sequence[float],
    rng: np.random.Generator,
    *,
    side: float = SIDE,
    particles: float = PARTICLES,
    channels: int = len(REDSHIFTS),
) -> np.ndarray:
    """Return the particles in each voxel, as 16-bit numbers; a channel for each redshift.

    Args:
        size: voxels along each side.
        targets: four numbers from -1 to 1.
        rng: decides everything else.
        side: length of the cube.
        particles: in a voxel, in the mean.
        channels: how many of the redshifts.
    """
    universe = cosmology(targets)
    field, variance = gaussian_field(size, universe, rng, side)
    volume = np.empty((size, size, size, channels), STORED)
    for channel, redshift in enumerate(REDSHIFTS[:channels]):
        grown = growth(redshift, universe.matter)
        expected = particles * np.exp(grown * field - grown**2 * variance / 2)
        found = rng.poisson(np.minimum(expected, _LARGEST))
        volume[..., channel] = np.minimum(found, _LARGEST)
    return volume


@functools.cache
def _wave_numbers(size: int, side: float) -> np.ndarray:
    along = 2 * np.pi * np.fft.fftfreq(size, side / size)
    last = 2 * np.pi * np.fft.rfftfreq(size, side / size)
    return np.sqrt(along[:, None, None] ** 2 + along[None, :, None] ** 2 + last**2)
