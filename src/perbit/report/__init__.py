"""Tables, pictures and pages for people: what a tensor looks like, what each codec makes of it, what a comparison came to."""
