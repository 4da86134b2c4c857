"""What the system does: one module for each function of the system."""
