"""One module for each pair of port and technology."""
