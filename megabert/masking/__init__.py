"""Static masking of many instances at once, and the keyed random numbers behind it; numpy only."""
