"""Measurements and estimates of this code: speed, memory, scaling, agreement with TRL."""
