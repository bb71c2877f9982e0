"""The checks of `hotreload doctor`, one module for each part of the machine."""
