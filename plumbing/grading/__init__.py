"""Spelling, structure and values of answers, and the worker processes that verify.py uses."""
