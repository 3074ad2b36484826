"""Families of `timm` and layers of `torch_geometric` that the engine was not developed with."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Case, add, classes, no_dropout
from zoo_models.graphs import NODES, geometric_take
from zoo_models.timm_models import group_norms, loss, pictures

MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "mixnet_s": (32, {}),
    "mnasnet_small": (32, {}),
    "fbnetc_100": (32, {}),
    "spnasnet_100": (32, {}),
    "hardcorenas_a": (32, {}),
    "semnasnet_050": (32, {}),
    "efficientvit_b0": (32, {}),
    "efficientvit_m0": (64, dict(img_size=64)),
    "levit_128s": (64, dict(img_size=64)),
    "repvgg_a0": (32, {}),
    "mobileone_s0": (32, {}),
    "fastvit_t8": (64, {}),
    "repvit_m0_9": (32, {}),
    "starnet_s1": (32, {}),
    "inception_next_atto": (32, {}),
    "tiny_vit_5m_224": (64, dict(img_size=64)),
    "dla46_c": (32, {}),
    "dpn48b": (32, {}),
    "selecsls42": (32, {}),
    "skresnet18": (32, {}),
    "eca_botnext26ts_256": (64, dict(img_size=64)),
    "lambda_resnet26rpt_256": (64, dict(img_size=64)),
    "halonet26t": (64, dict(img_size=64)),
    "resnet14t": (32, {}),
    "ese_vovnet19b_slim": (32, {}),
    "hrnet_w18_small": (64, {}),
    "gmixer_12_224": (32, dict(img_size=32, patch_size=8, embed_dim=24, num_blocks=2)),
    "resmlp_12_224": (32, dict(img_size=32, patch_size=8, embed_dim=24, num_blocks=2)),
    "gmlp_ti16_224": (32, dict(img_size=32, patch_size=8, embed_dim=24, num_blocks=2)),
    "visformer_tiny": (32, dict(img_size=32)),
    "coat_tiny": (32, dict(img_size=32)),
    "volo_d1_224": (32, dict(img_size=32, embed_dims=(12, 24), num_heads=(2, 2), layers=(1, 1), mlp_ratios=(2, 2),
                             downsamples=(False, False), outlook_attention=(True, False))),
    "vit_tiny_r_s16_p8_224": (32, dict(img_size=32, embed_dim=24, depth=2, num_heads=2)),
    "samvit_base_patch16": (32, dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2, window_size=2,
                                     global_attn_indexes=(1,))),
    "naflexvit_base_patch16_gap": (32, dict(embed_dim=24, depth=2, num_heads=2, patch_size=8)),
    "swiftformer_xs": (32, {}),
    "shvit_s1": (64, {}),
    "mobilenetv5_base": (32, {}),
    "csatv2": (64, dict(img_size=64)),
    "nextvit_small": (32, {}),
    "maxxvit_rmlp_nano_rw_256": (64, dict(img_size=64)),
    "tresnet_m": (32, {}),
    "gcvit_xxtiny": (64, dict(img_size=64, window_size=(2, 2, 2, 2))),
    "poolformerv2_s12": (32, dict(depths=(1, 1, 1, 1), dims=(8, 8, 16, 16))),
    "efficientformer_l1": (64, {}),
    "efficientformerv2_s0": (64, {}),
    "res2net50_14w_8s": (32, {}),
    "resnest14d": (32, {}),
    "legacy_seresnet18": (32, {}),
    "inception_v4": (96, {}),
    "xception41": (64, {}),
    "nasnetalarge": (64, {}),
}  # fmt: skip


def of_timm(name: str) -> Case:
    import timm

    side, options = MODELS[name]
    model = no_dropout(group_norms(timm.create_model(name, num_classes=3, **options)))
    return Case(model, partial(pictures, side), loss, sizes=(4, 3, 1))


for each in MODELS:
    add("timm", f"timm-{each}", partial(of_timm, each))


# -- torch_geometric -------------------------------------------------------------------------------------------------

LAYERS: dict[str, dict[str, Any]] = {
    "GATv2Conv": dict(edge_dim=3), "TransformerConv": dict(edge_dim=3), "GraphConv": {}, "TAGConv": dict(K=2),
    "ChebConv": dict(K=2), "ARMAConv": {}, "SGConv": {}, "LEConv": {}, "FeaStConv": {}, "ClusterGCNConv": {},
    "ResGatedGraphConv": dict(edge_dim=3), "GeneralConv": dict(in_edge_channels=3), "SuperGATConv": {},
    "GENConv": dict(edge_dim=3), "EGConv": {}, "FiLMConv": {}, "MFConv": {}, "AntiSymmetricConv": None,
    "GINEConv": None, "NNConv": None, "EdgeConv": None, "PNAConv": None, "GatedGraphConv": None, "CGConv": None,
    "RGCNConv": None, "GMMConv": None, "GPSConv": None,
}  # fmt: skip
EDGES = ("GATv2Conv", "TransformerConv", "ResGatedGraphConv", "GeneralConv", "GENConv", "GINEConv", "NNConv", "CGConv",
         "GMMConv")  # fmt: skip


class Graphs(nn.Module):
    """A layer of `torch_geometric` between two linear ones, and a mean over each graph's nodes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        import torch_geometric.nn as pyg

        layer, options = getattr(pyg, kind), LAYERS[kind]
        self.into, self.head, self.pool, self.kind = nn.Linear(4, 8), nn.Linear(8, 3), pyg.global_mean_pool, kind
        if options is not None:
            self.layer = layer(8, 8, **options)
        elif kind == "AntiSymmetricConv":
            self.layer = layer(8)
        elif kind == "GINEConv":
            self.layer = layer(nn.Linear(8, 8), edge_dim=3)
        elif kind == "NNConv":
            self.layer = layer(8, 8, nn.Linear(3, 64))
        elif kind == "EdgeConv":
            self.layer = layer(nn.Linear(16, 8))
        elif kind == "PNAConv":
            self.layer = layer(8, 8, ["mean", "max"], ["identity", "amplification"], torch.tensor([0, 2, 3, 1]))
        elif kind == "GatedGraphConv":
            self.layer = layer(8, 2)
        elif kind == "CGConv":
            self.layer = layer(8, dim=3)
        elif kind == "RGCNConv":
            self.layer = layer(8, 8, num_relations=2)
        elif kind == "GMMConv":
            self.layer = layer(8, 8, dim=3, kernel_size=2)
        else:
            self.layer = layer(8, pyg.GCNConv(8, 8), heads=2, norm="layer_norm")

    def forward(self, data: Any) -> Tensor:
        h = self.into(data.x).relu()
        if self.kind == "RGCNConv":
            h = self.layer(h, data.edge_index, data.edge_type)
        elif self.kind == "GPSConv":
            h = self.layer(h, data.edge_index, data.batch)
        elif self.kind in EDGES:
            h = self.layer(h, data.edge_index, data.edge_attr)
        else:
            h = self.layer(h, data.edge_index)
        return self.head(self.pool(h.relu(), data.batch, data.num_graphs))


def graphs(size: int, generator: torch.Generator) -> Any:
    from torch_geometric.data import Batch as Together
    from torch_geometric.data import Data

    found = []
    for count in torch.randint(3, NODES + 1, (size,), generator=generator).tolist():
        edges = torch.randint(0, count, (2, 2 * count), generator=generator)
        found.append(Data(x=torch.randn(count, 4, generator=generator), edge_index=edges, y=classes(1, 3, generator),
                          edge_attr=torch.rand(2 * count, 3, generator=generator),
                          edge_type=torch.randint(0, 2, (2 * count,), generator=generator)))  # fmt: skip
    return Together.from_data_list(found)


def of_geometric(kind: str) -> Case:
    model = no_dropout(Graphs(kind))
    return Case(model, graphs, lambda m, b: F.cross_entropy(m(b), b.y), take=geometric_take)


for each in LAYERS:
    add("graph", f"pyg-{each}", partial(of_geometric, each), honest=each != "GENConv")  # that one has a batch norm
