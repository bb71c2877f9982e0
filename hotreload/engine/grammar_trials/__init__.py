"""Tries grammars in a program of their own: a crash or an excess of memory ends only that."""
