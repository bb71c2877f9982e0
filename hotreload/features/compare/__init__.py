"""Compares new weights with the live ones before they answer, and refuses them by limits."""
