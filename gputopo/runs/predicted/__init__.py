"""What the runs of this box say of its predictions: the next ones (`past`), and that of a run (`compare`)."""
