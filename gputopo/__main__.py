"""`python -m gputopo`: the same as the command `gputopo`."""

from gputopo.cli import main

if __name__ == "__main__":
    main()
