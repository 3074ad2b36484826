"""Where examples lie after operations on images, matrices and frequencies that leave leading dimensions alone."""

from __future__ import annotations

from torch import Tensor

from tacit.gradients.layers.registry import Call, leading, mixes, pairs, removed, rule, rule_of_one
from tacit.gradients.layout import Layout, Tag

rule_of_one(
    """upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
    upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d pixel_shuffle pixel_unshuffle
    affine_grid_generator channel_shuffle im2col col2im feature_dropout feature_alpha_dropout"""
)(leading)


@rule_of_one(
    "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d"
)
def _pad(call: Call) -> Tag:
    x, layout = call.first()
    amounts = list(call.arg(1, "pad"))  # of the last dimension first
    own = amounts[2 * (x.ndim - 1 - layout.dim) :][:2]
    return mixes(call, "pads among the examples") if any(own) else layout


@rule_of_one("stft istft")
def _spectra(call: Call) -> Tag:
    x, layout = call.first()
    alone = layout.dim == 0 and x.ndim == (2 if call.name == "stft" else 3 + (not x.is_complex()))
    return layout if alone else mixes(call, "works across examples")


_INNER = {
    1: "pairwise_distance searchsorted multinomial _sample_dirichlet",
    2: """cdist tril triu linalg_inv linalg_inv_ex inverse linalg_det det logdet linalg_slogdet slogdet
    linalg_cholesky linalg_cholesky_ex cholesky cholesky_solve cholesky_inverse linalg_qr qr linalg_svd linalg_svdvals
    svd linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh linalg_solve linalg_solve_ex linalg_solve_triangular
    linalg_lstsq linalg_lu linalg_lu_factor linalg_pinv pinverse linalg_matrix_exp matrix_exp linalg_matrix_power
    matrix_power linalg_matrix_rank""",
    3: "max_unpool2d grid_sampler grid_sampler_2d",
    4: "max_unpool3d grid_sampler_3d",
}
"""Operations by the number of last dimensions that they work on; those before are treated one by one."""

_WIDTH = {name: inner for inner, names in _INNER.items() for name in names.split()}


@rule(" ".join(_WIDTH))
def _leading(call: Call) -> Tag:
    inner = _WIDTH[call.name]
    if call.name == "cdist" and call.has_only(call.main()):
        inner = 1  # every row by itself is compared with the constants
    rank = max(t.ndim - inner for t in (*call.args, *call.kwargs.values()) if isinstance(t, Tensor))
    found: Layout | None = None
    if call.name == "linalg_solve_triangular" and _are_columns(call):
        return call.layouts()[0][1]
    for t, tag in call.layouts():
        if tag.dim >= t.ndim - inner:
            return mixes(call, "works across examples")
        here = tag.at(rank - (t.ndim - inner) + tag.dim)
        if found is not None and (found.dim != here.dim or not found.same_order(here)):
            return pairs(call)
        found = here
    assert found is not None
    return found


def _are_columns(call: Call) -> bool:
    """Return whether a constant matrix is applied to examples that are the columns of the other one, or its rows."""
    x = call.arg(1, "B")
    across = x.ndim - 1 if call.arg(4, "left", default=True) else x.ndim - 2
    return call.has_only(x) and call.layouts()[0][1].dim == across and call.out.shape == x.shape


@rule_of_one("diagonal")
def _diagonal(call: Call) -> Tag:
    x, layout = call.first()
    dims = [d % x.ndim for d in (call.arg(2, "dim1", default=0), call.arg(3, "dim2", default=1))]
    return mixes(call, "works across examples") if layout.dim in dims else removed(layout, dims, False)


@rule_of_one("diag_embed")
def _diag_embed(call: Call) -> Tag:
    x, layout = call.first()
    moved = len(call.args) > 2 or "dim1" in call.kwargs or "dim2" in call.kwargs
    return mixes(call, "works across examples") if moved or layout.dim == x.ndim - 1 else layout


@rule_of_one("view_as_real view_as_complex bucketize")
def _same(call: Call) -> Tag:
    return call.first()[1]
