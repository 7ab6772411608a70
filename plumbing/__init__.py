"""What any training run needs. No equation of the paper is in here: a reader may skip it whole."""
