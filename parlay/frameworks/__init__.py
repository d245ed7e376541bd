"""Configuration files of training frameworks, read into the form of a run file: model, training, layout, GPUs."""
