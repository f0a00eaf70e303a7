"""Acceptance rules: one file a rule, one line a rule in this table."""

from mmspec.core.registry import Registry

ACCEPTANCE_RULES = Registry(
    "acceptance rule",
    {
        "block": "mmspec.acceptance.block:BlockAcceptance",
        "budgeted": "mmspec.acceptance.budgeted:BudgetedAcceptance",
        "cool": "mmspec.acceptance.cool:CoolAcceptance",
        "coupled": "mmspec.acceptance.coupled:CoupledAcceptance",
        "fuzzy": "mmspec.acceptance.fuzzy:FuzzyAcceptance",
        "greedy": "mmspec.acceptance.greedy:GreedyAcceptance",
        "grouped": "mmspec.image.grouped:GroupedAcceptance",
        "kseq": "mmspec.acceptance.kseq:KSeqAcceptance",
        "lantern": "mmspec.image.lantern:LanternAcceptance",
        "likelihood": "mmspec.acceptance.likelihood:LikelihoodAcceptance",
        "match": "mmspec.acceptance.match:MatchAcceptance",
        "ratio": "mmspec.acceptance.ratio:RatioAcceptance",
        "recursive": "mmspec.acceptance.recursive:RecursiveAcceptance",
        "threshold": "mmspec.acceptance.threshold:ThresholdAcceptance",
        "typical": "mmspec.acceptance.typical:TypicalAcceptance",
    },
)
