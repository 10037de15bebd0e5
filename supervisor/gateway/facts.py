"""What became of one request, for those who count it: a layer puts one into the scope before, and reads it after."""

from __future__ import annotations

from typing import Final

from attrs import define

KEY: Final = "queenright.facts"


@define
class Facts:
    """Filled in by `forwarding`. `outcome`: `answered`, `refused` (404, 413 and the like), `unavailable` (503 of ours),
    `interrupted`, `left` (the caller did); empty for what is not passed on. `tried` counts attempts that did not do."""

    path: str = ""
    role: str = ""
    group: str = ""
    is_stream: bool = False
    held_s: float = 0.0
    tried: int = 0
    outcome: str = ""
