"""Data sets on disk: folders, file formats, and writers of small valid data sets."""
