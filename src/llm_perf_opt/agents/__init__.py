"""What a program that asks questions gets: small, capped answers of finished runs, read-only, below one folder."""
