"""The checks of `hotreload doctor`, one file for each part of the machine."""
