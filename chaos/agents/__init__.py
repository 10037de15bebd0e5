"""Four agents on one engine: real processes with work of their own, judged from outside. `queenright agents`."""
