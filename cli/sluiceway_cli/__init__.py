"""The command line for partners, operators and developers."""
