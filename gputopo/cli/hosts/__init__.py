"""Commands on several hosts at once: where they meet, starting them, fleets, the network between them."""
