"""What families are made of, where several are."""
