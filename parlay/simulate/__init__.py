"""A room where N ranks hold their shards and exchange them, in NumPy: every byte sent and every FLOP done is counted."""
