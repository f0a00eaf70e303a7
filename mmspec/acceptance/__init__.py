"""Acceptance rules: one file a rule, one line a rule in this table."""

from mmspec.core.registry import Registry

ACCEPTANCE_RULES = Registry(
    "acceptance rule",
    {
        "block": "mmspec.acceptance.block:BlockAcceptance",
        "coupled": "mmspec.acceptance.coupled:CoupledAcceptance",
        "greedy": "mmspec.acceptance.greedy:GreedyAcceptance",
        "likelihood": "mmspec.acceptance.likelihood:LikelihoodAcceptance",
        "match": "mmspec.acceptance.match:MatchAcceptance",
        "ratio": "mmspec.acceptance.ratio:RatioAcceptance",
    },
)
