"""Measures real machines and writes what they reach to a calibration file."""
