"""The core's sub-commands of `queenright`, one module each. They stand in a table in `supervisor.cli`, so that
the quick ones are found without looking through what is installed; all others come by entry point (`queenright.commands`)."""
