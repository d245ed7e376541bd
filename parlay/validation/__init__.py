"""Published runs and worked examples, and how the predictions compare with them."""
