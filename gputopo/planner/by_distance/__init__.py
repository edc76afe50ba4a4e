"""Sets of GPUs by distance or measured bandwidth, where no step is predicted. Pure."""
