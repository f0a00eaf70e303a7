"""Batch generation: a manifest in, one file a row out, whatever interrupts it."""
