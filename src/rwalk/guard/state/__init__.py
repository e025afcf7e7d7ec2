"""State per parameter: plain, quantized, on the host, sharded."""
