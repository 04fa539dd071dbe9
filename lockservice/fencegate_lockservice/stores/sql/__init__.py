"""What the SQL stores share: their tables, what a person reads in them, and how they come to be."""
