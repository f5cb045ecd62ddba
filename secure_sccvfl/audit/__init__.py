"""Security evaluation of a finished run: attacks on what each place really saw, read from its transcripts."""
