"""A keeper that waits for a warden that never comes."""

from __future__ import annotations

import pytest

from supervisor import contract, standby, warden
from tests.process.children import Child
from tests.support import alive, wait_until

pytestmark = pytest.mark.process

STARTER = """
import sys
from supervisor import standby
waiting = standby.begin()
print(waiting.pid)
if sys.stdin.readline().strip() == "end":
    waiting.end()
    print("ended")
sys.stdin.readline()
"""


def test_it_ends_with_whoever_started_it() -> None:
    with Child(STARTER) as child:
        pid = int(child.hear())
        child.kill()
        wait_until(lambda: not alive(pid))


def test_it_can_be_sent_away() -> None:
    with Child(STARTER) as child:
        pid = int(child.hear())
        assert alive(pid)
        child.say("end")
        assert child.hear() == "ended"
        assert not alive(pid)
        child.say()


def test_it_is_marked_as_a_keeper_is() -> None:
    assert standby.MARKER == warden.MARKER == contract.GENERATION_VARIABLE
