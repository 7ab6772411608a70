"""studies/useful/families.py: the table of docs/log.md, with two of its five seeds."""

import numpy as np
import pytest

from studies.useful.families import ARMS, FAMILIES, run, summarize


def test_uniform_draws_all_families_alike_and_all_but_flat_are_learned():
    shares, p = summarize("uniform", range(2))
    assert shares == pytest.approx(np.full((3, 4), 0.25), abs=0.05)
    assert p[FAMILIES.index("flat")] == pytest.approx(0.05)
    assert (np.delete(p, FAMILIES.index("flat")) > 0.5).all()


def test_two_families_open_after_the_first_third():
    p_of_step = [p for _, p in run("uniform", seed=0)]
    assert p_of_step[39][2:] == pytest.approx([0.01, 0])
    assert p_of_step[40][2:] == pytest.approx(0.05)


def test_frontier_finds_the_families_that_open_late_and_spends_more_than_uniform_on_flat():
    shares, p = summarize("frontier", range(2), **ARMS["frontier"])
    flat, _, *late = shares.mean(axis=0)
    assert min(late) > 0.15
    assert min(p[2:]) > 0.7
    assert flat > 0.25


def test_noisy_and_stays_with_the_family_that_is_not_learned():
    shares, p = summarize("noisy_and", range(5), **ARMS["noisy_and"])
    assert shares[1:, FAMILIES.index("flat")].min() > 0.5
    assert max(p[2:]) < 0.3
