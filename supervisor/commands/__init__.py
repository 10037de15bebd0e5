"""The sub-commands of `queenright`, one module each, found by entry point (`queenright.commands`)."""
