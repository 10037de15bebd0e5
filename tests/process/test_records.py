"""Records under a reader and a writer at once."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from supervisor import records
from tests.process.children import Child

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

READER = """
import sys, threading
from pathlib import Path
from supervisor import records
path, stop, reads, seen = Path(sys.argv[1]), threading.Event(), 0, set()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set())).start()
print("ready")
while not stop.is_set():
    fields = records.read_fields(path, version=1)
    generation = fields["generation"]
    assert fields == {"generation": generation, "pid": 1000 + generation, "pin": f"pin {generation}" * 200}
    reads += 1
    seen.add(generation)
print(reads, len(seen))
"""

WRITER = """
import sys
from pathlib import Path
from supervisor import records
for number in range(10**9):
    records.write(Path(sys.argv[1]), {"number": number, "same": number, "filler": "x" * 5000}, version=1)
    if number == 5:
        print("writing")
"""


def test_every_read_during_rewriting_is_of_one_generation__hermes_1631(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"

    def rebuild(generation: int) -> None:
        body = {"generation": generation, "pid": 1000 + generation, "pin": f"pin {generation}" * 200}
        records.write(path, body, version=1)

    rebuild(0)
    with Child(READER, path) as reader:
        assert reader.hear() == "ready"
        for generation in range(1, 51):
            rebuild(generation)
        reader.say()
        reads, seen = map(int, reader.hear().split())
        assert reader.end() == 0
    assert reads >= seen >= 1


def test_a_writer_killed_at_any_moment_leaves_a_whole_record(tmp_path: Path) -> None:
    path = tmp_path / "keeper.json"
    for _ in range(3):
        with Child(WRITER, path) as writer:
            assert writer.hear() == "writing"
            os.kill(writer.pid, signal.SIGKILL)
            writer.end()
        fields = records.read_fields(path, version=1)
        assert fields is not None
        assert fields["number"] == fields["same"] >= 5
    records.clear_temporaries(tmp_path)
    assert os.listdir(tmp_path) == ["keeper.json"]
