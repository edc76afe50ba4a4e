"""What a run tells as it goes, and what follows from that: its result, its pace, its slow devices. Pure."""
