"""Several hosts compared: kinds of like hosts, and the outliers of each kind."""
