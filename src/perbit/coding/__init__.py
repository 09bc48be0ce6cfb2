"""What a codec is, how codecs compose, and how they are written down; `families` has the codecs themselves."""
