"""Refused if all is well: every product is a little too large, as that of a kernel with a mistake in its last block."""

TITLE = "a wrong kernel"
CHANGES = "everything, on purpose"


def apply(program):
    from torch.nn import functional

    linear = functional.linear

    def wrong(x, weight, bias=None):
        program.count("wrong products")
        found = linear(x, weight, bias)
        found[..., -8:] = found[..., -8:] * 1.25
        return found

    functional.linear = wrong


def evidence(program):
    count = program.counts.get("wrong products", 0)
    return count > 0, f"{count} wrong products"
