"""Enumerates, prunes and ranks layouts."""
