"""Measurements and estimates of this code: speed, memory, agreement with TRL."""
