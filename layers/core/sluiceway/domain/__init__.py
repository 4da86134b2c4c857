"""Pure rules: no input or output, no clock, no randomness."""
