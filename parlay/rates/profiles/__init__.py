"""Measured rate profiles, one JSON file a device, written by scripts/fit_rates.py."""
