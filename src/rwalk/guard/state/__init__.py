"""What is kept per parameter: plain, quantized, on the host, sharded, for adapters."""
