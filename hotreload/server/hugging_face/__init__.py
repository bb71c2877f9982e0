"""Hugging Face's text generation, for its older clients."""
