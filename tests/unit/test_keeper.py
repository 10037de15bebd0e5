"""What the keeper decides by itself, without a warden."""

from __future__ import annotations

import resource

import pytest

from supervisor.keeper import FILES, files

ENDLESS = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, FILES),
        (1024, ENDLESS, FILES),
        (1 << 20, 1 << 20, 1 << 20),
        (1 << 20, ENDLESS, 1 << 20),
        (ENDLESS, ENDLESS, ENDLESS),
    ],
)
def test_the_limit_of_descriptors_is_raised_and_never_lowered(soft: int, hard: int, wanted: int) -> None:
    assert files(soft, hard) == wanted
