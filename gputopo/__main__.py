"""The entry point: `gputopo` and `python -m gputopo`. A Ctrl-C while modules are loaded ends it quietly.

What comes before this file, Python's own start and the script that an installer makes, is not ours.
"""

# At once, not in `main`: the script of an installer does some work in between.
try:
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # `gputopo.cli.main` takes it back
except KeyboardInterrupt:
    raise SystemExit(130) from None  # 128 + SIGINT


def main() -> None:
    """Load the command line, run it, and end the process with its exit code."""
    from gputopo.cli import main as run

    run()


if __name__ == "__main__":
    main()
