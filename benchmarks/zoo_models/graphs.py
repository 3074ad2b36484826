"""Graph networks: padded dense graphs, and `torch_geometric` batches that put all graphs into one list of nodes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo_models.cases import Batch, Case, add, classes, entry, lengths

NODES = 7


def dense_graphs(size: int, generator: torch.Generator) -> Batch:
    """Draw padded graphs: features, adjacency, mask of the nodes, class."""
    mask = torch.arange(NODES)[None, :] < lengths(size, NODES, 3, generator)[:, None]
    linked = (torch.rand(size, NODES, NODES, generator=generator) < 0.4).triu(1)
    linked = (linked | linked.mT) & mask[:, None, :] & mask[:, :, None]
    return torch.randn(size, NODES, 4, generator=generator), linked.float(), mask, classes(size, 3, generator)


class DenseGCN(nn.Module):
    """Kipf and Welling's convolution on padded graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, adjacency: Tensor, mask: Tensor) -> Tensor:
        with_self = adjacency + torch.eye(adjacency.shape[1])
        scale = with_self.sum(-1).rsqrt()
        normal = scale[:, :, None] * with_self * scale[:, None, :]
        h = torch.relu(normal @ self.first(x))
        h = torch.relu(normal @ self.second(h)) * mask[:, :, None]
        return self.head(h.sum(1) / mask.sum(1, keepdim=True))


class DenseGAT(nn.Module):
    """Attention over neighbours, with masked scores."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(4, 16), nn.Linear(16, 3)
        self.source, self.target = nn.Parameter(torch.randn(16) * 0.1), nn.Parameter(torch.randn(16) * 0.1)

    def forward(self, x: Tensor, adjacency: Tensor, mask: Tensor) -> Tensor:
        h = self.project(x)
        scores = F.leaky_relu((h @ self.source)[:, :, None] + (h @ self.target)[:, None, :], 0.2)
        near = adjacency.bool() | torch.eye(adjacency.shape[1], dtype=torch.bool)
        h = torch.softmax(scores.masked_fill(~near, float("-inf")), -1) @ h
        return self.head(h.masked_fill(~mask[:, :, None], -1e4).amax(1))


class MessagePassing(nn.Module):
    """Messages on the edges of each example's edge list, gathered with `scatter_add` along the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(8, 16), nn.GRUCell(16, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for _ in range(2):
            source, target = edges[:, :, :1], edges[:, :, 1:]
            ends = [x.gather(1, end.expand(-1, -1, 4)) for end in (source, target)]
            messages = torch.relu(self.message(torch.cat(ends, -1)))
            total = torch.zeros(len(x), NODES, 16).scatter_add(1, target.expand(-1, -1, 16), messages)
            x = self.update(total.flatten(0, 1), x.flatten(0, 1)).view_as(x)
        return self.head(x.mean(1))


def dense_loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(*batch[:3]), batch[3])


@entry("graph", "edge-lists")
def edge_lists() -> Case:
    def batch(size: int, generator: torch.Generator) -> Batch:
        edges = torch.randint(0, NODES, (size, 9, 2), generator=generator)
        return torch.randn(size, NODES, 4, generator=generator), edges, classes(size, 3, generator)

    return Case(MessagePassing(), batch, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2]))


add("graph", "dense-gcn", lambda: Case(DenseGCN(), dense_graphs, dense_loss))
add("graph", "dense-gat", lambda: Case(DenseGAT(), dense_graphs, dense_loss))


# -- torch_geometric -------------------------------------------------------------------------------------------------


class Pooled(nn.Module):
    """Two convolutions of `torch_geometric`, pooled by graph."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        import torch_geometric.nn as pyg

        layer = getattr(pyg, kind)
        if kind == "GINConv":
            self.first, self.second = layer(nn.Linear(4, 16)), layer(nn.Linear(16, 16))
        else:
            self.first, self.second = layer(4, 16, **options), layer(16, 16, **options)
        self.head, self.pool = nn.Linear(16, 3), pyg.global_mean_pool

    def forward(self, data: Any) -> Tensor:
        h = self.first(data.x, data.edge_index).relu()
        h = self.second(h, data.edge_index).relu()
        return self.head(self.pool(h, data.batch, data.num_graphs))


def geometric_batch(size: int, generator: torch.Generator) -> Any:
    from torch_geometric.data import Batch as Graphs
    from torch_geometric.data import Data

    graphs = []
    for count in lengths(size, NODES, 3, generator).tolist():
        edges = torch.randint(0, count, (2, 2 * count), generator=generator)
        graphs.append(Data(x=torch.randn(count, 4, generator=generator), edge_index=edges, y=classes(1, 3, generator)))
    return Graphs.from_data_list(graphs)


def geometric_take(batch: Any, rows: Tensor) -> Any:
    from torch_geometric.data import Batch as Graphs

    return Graphs.from_data_list([batch[int(i)] for i in rows])


def geometric(kind: str, **options: Any) -> Case:
    return Case(Pooled(kind, **options), geometric_batch, lambda m, b: F.cross_entropy(m(b), b.y), take=geometric_take)


for each in ("GCNConv", "GATConv", "SAGEConv", "GINConv"):
    add("graph", f"pyg-{each}", partial(geometric, each))


@entry("graph", "pyg-DenseSAGE")
def dense_sage() -> Case:
    """`torch_geometric`'s own layers for padded graphs."""
    import torch_geometric.nn as pyg

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = pyg.DenseSAGEConv(4, 16), pyg.DenseGCNConv(16, 16)
            self.head = nn.Linear(16, 3)

        def forward(self, x: Tensor, adjacency: Tensor, mask: Tensor) -> Tensor:
            h = self.first(x, adjacency, mask).relu()
            h = self.second(h, adjacency, mask).relu()
            return self.head(h.sum(1))

    return Case(Net(), dense_graphs, dense_loss)
