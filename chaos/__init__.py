"""Outside-in: front ends, faults, load, and what must hold. Uses the client like anybody else."""
