"""What tools that measure bandwidths print: bandwidthTest, p2pBandwidthLatencyTest, nvbandwidth."""
