"""How fast this hardware really is: seconds of a GEMM, an attention, a byte stream, a collective."""
