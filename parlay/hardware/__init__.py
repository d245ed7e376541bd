"""Devices, links and clusters as data: the specifications, their loaders and the catalog."""
