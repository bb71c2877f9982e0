"""Verbs for operators of machines: checks, the doctor, the service."""
