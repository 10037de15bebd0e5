"""What a soak breaks: one module for each idea. `ground` says what a fault is, `catalogue` has them all."""

from __future__ import annotations

from chaos.soak.faults.catalogue import DEFAULT, FAULTS, schedule
from chaos.soak.faults.ground import Fault, Ground, Hit, changed_beyond

__all__ = ["DEFAULT", "FAULTS", "Fault", "Ground", "Hit", "changed_beyond", "schedule"]
