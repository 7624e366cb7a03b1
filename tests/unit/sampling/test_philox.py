"""Philox against published known answers, and the shape of the numbers made from it."""

import numpy as np
import pytest

from forebay.engine.sampling.philox import philox, uniform

# Known-answer vectors of the Random123 library for philox4x32 with 10 rounds.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    c0, c1, c2, c3 = (np.array([word], dtype=np.uint64) for word in counter)
    k0, k1 = (np.array([word], dtype=np.uint64) for word in key)
    assert tuple(int(word[0]) for word in philox((c0, c1, c2, c3), (k0, k1))) == expected


def test_numbers_depend_on_every_bit_of_seed_and_position() -> None:
    seeds = np.array([0] + [1 << bit for bit in range(64)], dtype=np.uint64)
    zeros = np.zeros_like(seeds)
    assert len(set(uniform(seeds, zeros).tolist())) == 65
    assert len(set(uniform(zeros, seeds).tolist())) == 65


def test_numbers_are_uniform_in_the_open_interval() -> None:
    positions = np.arange(100_000, dtype=np.uint64)
    numbers = uniform(np.full_like(positions, 42), positions)
    assert numbers.min() > 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=100, range=(0.0, 1.0))
    # 99 degrees of freedom: 149.4 is the 99.9 % quantile of chi-square.
    assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 149.4
