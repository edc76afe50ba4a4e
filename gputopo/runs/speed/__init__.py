"""Speed of counted steps: throughput, steadiness, changes over time."""
