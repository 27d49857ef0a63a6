"""Inner products and combinations of the clients' vectors."""

import torch

from isonomy.blocks.vectors import COLUMNS, combination, gram


def test_pieces_give_the_products_of_whole_vectors() -> None:
    """More columns than one piece has, and a last piece that is not full."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(4, 2 * COLUMNS + 17, generator=generator)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    exact = vectors.to(torch.float64)
    torch.testing.assert_close(gram(vectors), exact @ exact.T, rtol=1e-12, atol=1e-10)
    torch.testing.assert_close(combination(weights, vectors), weights @ exact, rtol=0, atol=1e-14)
