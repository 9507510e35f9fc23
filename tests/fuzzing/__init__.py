"""Mutated inputs for every reader: what is made (`mutate`, `cases`), and how an answer is checked (`worker`).

`make fuzz` runs ten thousand and more of them, the tests a fixed few. A case is known by its kind and number
alone: `python benchmarks/fuzz.py --kind KIND --only NUMBER` makes the same one again.
"""
