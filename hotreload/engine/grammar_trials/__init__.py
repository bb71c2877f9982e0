"""Tries grammars in a program of its own, where one that crashes or eats memory hurts nobody."""
