"""The soak: rounds of load and faults, judged from outside after each. `queenright soak`."""
