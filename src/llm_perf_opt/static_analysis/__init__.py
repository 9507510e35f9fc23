"""FLOPs and bytes of each stage without a GPU: torch's counter on the meta device beside closed formulas."""
