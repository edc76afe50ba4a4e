"""Times the reduction of gradients: `bench` asks method by method, each in a `process` of its own."""
