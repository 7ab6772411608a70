"""Samplers of this project in other trainers."""
