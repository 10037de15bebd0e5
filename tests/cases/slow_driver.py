"""A driver that takes its time to say what devices there are. In a keeper's place (`slow_driver.py SLOT SECONDS COUNT`), and for
a front end that starts one. COUNT gets a line for each question.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from supervisor.devices import nvml


def slow(seconds: float, count: Path) -> None:
    """Have every question to the driver take so long. There are no devices."""

    def ask(limit: float) -> dict[str, Any]:
        del limit
        with count.open("a") as file:
            file.write("asked\n")
        threading.Event().wait(seconds)
        return {"driver": "slow", "devices": []}

    nvml._ask = ask


def main() -> int:
    """As a keeper."""
    from supervisor import keeper

    slow(float(sys.argv[2]), Path(sys.argv[3]))
    return keeper.main()


if __name__ == "__main__":
    sys.exit(main())
