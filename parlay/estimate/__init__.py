"""Joins models, hardware, layouts, rates and formulas into memory and time of a step, as a tree of terms."""
