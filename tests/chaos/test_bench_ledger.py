"""What `bench ledger` makes of boots: prediction from two, scores on the rest, and what counts as a miss."""

from __future__ import annotations

from attrs import evolve

from chaos.bench_ledger import Cell, predicted, row

MIB = 1 << 20
CELL = Cell(512, 1, "f16", 90 * MIB, 90 * MIB, 10 * MIB, 10 * MIB, 20 * MIB, 15 * MIB, 40 * MIB, 110 * MIB)


def grown(number: int) -> Cell:
    """A boot with so much more cache, of which a process holds all: 30 MiB above what is planned."""
    cache = number * 10 * MIB
    return evolve(CELL, sequences=number, cache=cache, printed_cache=cache, own=(30 + 10 * number) * MIB)


def test_the_ends_are_calibrated_and_the_others_scored() -> None:
    cells = list(predicted(grown(number) for number in (1, 8, 2, 4)))
    assert [cell.is_calibration for cell in cells] == [True, True, False, False]
    assert [cell.predicted // MIB for cell in cells] == [150, 220, 160, 180]
    assert not any(cell.misses for cell in cells)
    assert row(cells[0]).endswith("| 40 | 110 | 150 | 150 | calibrated |")
    assert row(cells[2]).endswith("| 50 | 110 | 160 | 160 | +0.0 % |")


def test_each_goal_can_be_missed() -> None:
    good = evolve(CELL, predicted=150 * MIB)
    assert good.misses == []
    assert evolve(good, printed_model=92 * MIB).misses == ["model"]
    assert evolve(good, cache=11 * MIB).misses == ["cache"]
    assert evolve(good, printed_compute=21 * MIB).misses == ["compute"]
    assert evolve(good, predicted=163 * MIB).misses == ["held"]
