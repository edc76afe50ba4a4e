"""The entry point: `gputopo` and `python -m gputopo`. A Ctrl-C while modules are loaded ends it quietly."""

_INTERRUPTED = 130  # 128 + SIGINT. Nothing is imported outside of `main`: even `typing` takes 10 ms


def main() -> None:
    """Load the command line, run it, and end the process with its exit code."""
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # `gputopo.cli.main` takes it back
        from gputopo.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    run()


if __name__ == "__main__":
    main()
