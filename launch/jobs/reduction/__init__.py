"""Times the reduction of gradients: `bench` runs a `worker` for each method."""
