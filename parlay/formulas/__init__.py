"""One equation a function: numbers and arrays in, arrays out, NumPy only. Every argument broadcasts."""
