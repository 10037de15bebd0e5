"""Receipts as servers write them: read on as they grow, and held against the requests that were asked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from chaos.soak.receipts import Receipts
from chaos.soak.seen import Ended, Execution

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, identifier: str, at: float, tokens: int | None = None, pid: int = 4, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write(json.dumps({"id": identifier, "pid": pid, "at": at, "tokens": tokens}) + end)


def ended(identifier: str, at: float = 100.0) -> Ended:
    return Ended("client", "chat", "complete", 1.0, id=identifier, began=at - 1.0)


def test_a_request_has_its_executions_whole_or_not(tmp_path: Path) -> None:
    path = tmp_path / "served"
    receipts = Receipts([path])
    receipts.read()  # there is nothing yet
    write(path, "gateway.a", 99.1)
    write(path, "-", 99.2)  # a canary
    write(path, "jumped", 99.2)  # a front end of a fault
    write(path, "gateway.a", 99.3, pid=5)
    write(path, "gateway.a", 99.9, 12, pid=5)
    write(path, "gateway.b", 99.9, end="")  # a line that is being written
    receipts.read()
    found = receipts.of([ended("gateway.a"), ended("gateway.b")])
    assert found == {"gateway.a": [Execution(99.1, 4), Execution(99.3, 5, 12)], "gateway.b": []}
    with path.open("a") as file:
        file.write("\n")
    receipts.read()
    assert receipts.of([ended("gateway.b")]) == {"gateway.b": [Execution(99.9, 4)]}


def test_what_nobody_asked_and_what_was_over_is_told(tmp_path: Path) -> None:
    path = tmp_path / "served"
    receipts = Receipts([path])
    write(path, "gateway.a", 99.5)
    write(path, "gateway.open", 99.6)
    write(path, "gateway.foreign", 99.7)
    receipts.read()
    assert receipts.strays(["gateway.open"], [ended("gateway.a")]) == ["gateway.foreign, which nobody asked"]
    receipts.settle([ended("gateway.a"), ended("gateway.foreign")])
    write(path, "gateway.a", 100.5)
    write(path, "gateway.a", 100.6, 12)
    receipts.read()
    assert receipts.strays(["gateway.open"], []) == ["gateway.a again 0.50 s after it had ended"]
    receipts.settle([])
    receipts.read()
    assert receipts.strays(["gateway.open"], []) == []


def test_a_file_that_cannot_be_read_leaves_it_unknown(tmp_path: Path) -> None:
    receipts = Receipts([tmp_path])  # a directory
    receipts.read()
    assert receipts.are_kept
    assert receipts.of([ended("gateway.a")]) is None
    assert not Receipts([]).are_kept
