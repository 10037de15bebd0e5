"""queenright's core. Import from its submodules: PyPI's `supervisor` owns this file's name too."""
