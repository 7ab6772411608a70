"""Ranks, messages between them, and how they stop."""
