"""Workers started by multiprocessing, which run the model."""

import multiprocessing
import sys


def work(number: int) -> int:
    import torch
    from torch import nn

    nn.Sequential(nn.Linear(4, 4))(torch.randn(number, 4))
    return number


if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.map(work, [1, 2]))
