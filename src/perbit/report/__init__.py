"""Tables and pictures for people: what a tensor looks like, and what each codec makes of it."""
