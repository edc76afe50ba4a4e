"""`gputopo report`: its options, what it reads, and its forms."""
