"""Seed 003: one machine of 121 GiB, an engine with a pool and an arena. The figures are its operator's and upstream's;
docs/guides/reading-the-ledger.md tells the story."""

from __future__ import annotations

import pytest

from workers.planner.pooled import Linear, Pooled, admitted, fit_linear, sweep

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

ARENA = Linear(3.80 * GIB, 8.40 * GIB / 16_384)
ENGINE = Pooled(position=28 * KIB, slot=111 * MIB, arena=ARENA, fixed=int(1.97 * GIB))
DEVICE = int(53.5 * GIB)
"""What the weights leave: a reserve of 24 left a budget of 29.5 GiB, one of 15 left 38.5."""


def gib(number: float) -> float:
    return number / GIB


def test_seed_003_linear_arena_two_boots_foretell_the_third() -> None:
    # Measured: 16,384 -> 12.2 GiB, 32,768 -> 20.6, 65,536 -> 37.4 (it said 37.3, and failed to be allocated).
    found = fit_linear([(16_384, 12.2 * GIB), (32_768, 20.6 * GIB)])
    assert gib(found.at(65_536)) == pytest.approx(37.4, abs=0.1)
    assert gib(found.base) == pytest.approx(3.80, abs=0.01)
    assert gib(found.slope * 16_384) == pytest.approx(8.40, abs=0.01)
    with pytest.raises(ValueError, match="two boots"):
        fit_linear([(16_384, 12.2 * GIB)])
    # 29.5 GiB is less than the arena alone: to be refused before the spawn.
    assert found.at(65_536) > 29.5 * GIB
    assert ENGINE.most_tokens(29.5 * GIB, 0, 1) < 65_536


def test_seed_003_the_pool() -> None:
    # 401,408 x 28 KiB = 10.72 GiB; the boot with three slots of 111 MiB printed ~11.0.
    assert gib(ENGINE.pool(401_408, 0)) == pytest.approx(10.72, abs=0.005)
    assert gib(ENGINE.pool(401_408, 3)) == pytest.approx(11.0, abs=0.05)
    # 524,288 x 28 KiB = 14.0 GiB, with four slots 14.4: the figure of every calculation in the notes.
    assert gib(ENGINE.pool(524_288, 4)) == pytest.approx(14.4, abs=0.05)
    # modelled need of 401,408 at 32,768: 10.8 + 20.6 + 1.97 = 33.4
    assert gib(ENGINE.need(401_408, 0, 32_768)) == pytest.approx(33.4, abs=0.15)
    # and of the doubled pool: 37.0
    assert gib(ENGINE.need(524_288, 4, 32_768)) == pytest.approx(37.0, abs=0.05)


def test_seed_003_the_ceilings_of_max_tok() -> None:
    assert ENGINE.most_tokens(29.5 * GIB, 524_288, 4) == pytest.approx(18_130, abs=10)
    assert ENGINE.most_tokens(38.5 * GIB, 524_288, 4) == pytest.approx(35_700, abs=50)
    # Before the vision tower was in the account, with 1.5 GiB of margin and a pool of 14.4: 19,115.
    assert ARENA.most((29.5 - 1.5 - 14.4) * GIB) == pytest.approx(19_115, abs=1)


def test_seed_003_upstreams_totals() -> None:
    # Published with the flag's documentation: 524,288 positions about 35, 786,432 about 42 (both at 32,768), 1,048,576
    # at 16,384 about 41. Pool and arena of four slots, without the tower.
    plain = Pooled(28 * KIB, 111 * MIB, ARENA)
    assert round(gib(plain.need(524_288, 4, 32_768))) == 35
    assert round(gib(plain.need(786_432, 4, 32_768))) == 42
    assert round(gib(plain.need(1_048_576, 4, 16_384))) == 41


def test_seed_003_reserve_is_not_a_reservation() -> None:
    # Ten values. 37.0 GiB are needed of 53.5 less the reserve: up to 16 it changes nothing, from 17 on half of the
    # pool is gone. The engine leaves the tower out and adds 1.5 GiB: 35.0 + 1.5 = 36.5, so up to 17 there.
    reserves = [gib_ * GIB for gib_ in (8, 12, 14, 15, 16, 17, 20, 23, 24, 40)]
    engine = Pooled(28 * KIB, 111 * MIB, ARENA)
    found = {
        row.reserve // GIB: row
        for row in sweep(engine, DEVICE, reserves, 524_288, 4, 32_768, margin=int(1.46 * GIB))
    }  # fmt: skip
    assert [found[value].positions for value in (8, 12, 14, 15, 16, 17)] == [524_288] * 6
    assert found[20].positions == found[23].positions == found[24].positions == 262_144
    assert found[40].positions == 0
    assert [value for value, row in found.items() if row.changes] == [8, 20, 40]
    assert found[15].binds.startswith("pool")
    assert found[16].binds.startswith("pool")
    assert found[24].binds.startswith("reserve: it leaves room for 262,144 of 524,288")
    assert found[40].binds.startswith("arena")
    assert (found[24].budget, found[15].budget) == (int(29.5 * GIB), int(38.5 * GIB))


def test_seed_003_admission_is_bound_by_the_pool_not_by_the_slots() -> None:
    assert admitted(524_288, [262_144] * 4) == 2
    assert admitted(524_288, [131_072] * 5) == 4
    assert admitted(401_408, [262_144, 139_264, 1]) == 2
    assert admitted(401_408, [131_072] * 4) == 3
