"""The links that a step uses: what each carries, its rate, which links are shared, and rings over them."""
