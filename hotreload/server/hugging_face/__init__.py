"""Hugging Face's text generation API, for its older clients."""
