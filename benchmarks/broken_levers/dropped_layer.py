"""Refused if all is well: the middle one of the largest list of layers does nothing."""

TITLE = "a dropped layer"
CHANGES = "everything, on purpose"


def apply(program):
    from torch import nn

    def drop(model):
        lists = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential)) and len(m) > 1]
        if not lists:
            return
        layer = max(lists, key=len)[len(max(lists, key=len)) // 2]
        for parameter in layer.parameters():
            parameter.data.zero_()
        program.count("layers dropped")

    program.on_model(drop)


def evidence(program):
    return bool(program.counts.get("layers dropped")), "a layer does nothing"
