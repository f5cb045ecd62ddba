"""Whole secure trainings: by data set, by rows and columns, by number of classes, and by the network's delay."""
