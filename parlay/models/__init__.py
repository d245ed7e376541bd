"""Models as data: the specification, its loaders and the catalog."""
