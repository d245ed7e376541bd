"""Layouts: how a model's work is split over GPUs, what is asked of it, and the rules a layout must keep."""
