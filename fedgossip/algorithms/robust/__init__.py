"""Rules that combine models in spite of liars, and the attacks that they are tested against."""
