"""Measurements of this code."""
