"""What runs: engine kinds, the built-in proxy, model files. Sees the core's contract only."""
