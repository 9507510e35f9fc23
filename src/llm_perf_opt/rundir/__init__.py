"""The directory a run leaves: what is in it, who may write, what may be packed, pruned or shared."""
