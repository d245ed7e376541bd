"""Parlay: which parallel layout should this model run on this cluster, will it fit, how fast, and why."""

__version__ = "0.1.0"
