"""The links that a step uses: what each carries, how fast it is, which are shared, rings over them. Pure."""
