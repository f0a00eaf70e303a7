"""Drafters: one file a drafter, one line a drafter in this table."""

from mmspec.core.registry import Registry

DRAFTERS = Registry(
    "drafter",
    {
        "block": "mmspec.drafters.block:BlockDrafter",
        "ctc": "mmspec.speech.ctc_drafter:CTCDrafter",
        "eagle3": "mmspec.drafters.eagle3:Eagle3Drafter",
        "feature": "mmspec.drafters.feature:FeatureDrafter",
        "jacobi": "mmspec.drafters.jacobi:JacobiDrafter",
        "model": "mmspec.drafters.model:ModelDrafter",
        "mtp": "mmspec.drafters.mtp:MTPDrafter",
        "ngram": "mmspec.drafters.ngram:NGramDrafter",
        "residual": "mmspec.speech.residual_drafter:ResidualDrafter",
        "scaffold": "mmspec.drafters.scaffold:ScaffoldDrafter",
        "spatial": "mmspec.drafters.spatial:SpatialDrafter",
    },
)
