"""What gputopo starts: training runs, trials, measurements, and the user's program."""
