"""One GPU as NVML reports it, fact by fact, and what connects two of them."""
