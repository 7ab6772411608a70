"""What any training run needs and no equation of the paper is in."""
