"""Whole training steps of a Llama-style stack, by layout, length and attention; see training.py."""
