"""Federated point estimation: the analysis of FMTL, with two corrections.

Li, Hu, Beirami and Smith, "Federated multi-task learning for competing constraints" (2020),
appendix B. Client k's point is w_k = theta + N(0, tau^2), with a flat prior of theta. The client
observes the mean of n examples, hat w_k = w_k + N(0, s) with s = sigma^2 / n, and w* is the mean of
all K of them. Of the K clients, Ka are adversaries, whose points have tau_a >= tau. Personal
estimates are

    hat w_k(lam) = lam / (1 + lam) w* + 1 / (1 + lam) hat w_k                        (lemma 3)

Correct in the paper, and used here: the best lam is s / tau^2 (theorem 1) and, with adversaries,
K s / S with S = K tau^2 + Ka (tau_a^2 - tau^2) / (K - 1) (theorem 3); the error at the best lam is
the posterior variance (lemma 6, first half).

Corrected here: lemma 6 gives the variance of the error as 2 sigma_w^4. That holds for one client
over trials. The paper defines fairness as the variance across clients, whose errors all depend on
w*: with their covariance c it is 2 (1 - 1/Kb) (E[e^2]^2 - c^2) in expectation. And with
adversaries, contrary to theorem 4, the lam that minimises this variance is not the one that
minimises the error (without adversaries the two are equal, as theorem 2 says).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Points:
    """A problem: K clients with n examples each, and standard deviations sigma and tau.

    >>> round(Points(clients=20, n=25, sigma=1.0, tau=0.2).best_lam, 12)
    1.0
    """

    clients: int  # K
    n: int
    sigma: float
    tau: float
    adversaries: int = 0  # Ka
    tau_a: float = 0.0  # the adversaries' tau, at least tau

    def __post_init__(self) -> None:
        if not 0 <= self.adversaries < self.clients:
            raise ValueError(
                f"adversaries = {self.adversaries}: give a number from 0 to {self.clients - 1}."
            )
        if self.adversaries and self.tau_a < self.tau:
            raise ValueError(f"tau_a = {self.tau_a}: give a number of at least tau = {self.tau}.")

    @property
    def benign(self) -> int:
        """Kb: the number of clients that are not adversaries."""
        return self.clients - self.adversaries

    @property
    def noise(self) -> float:
        """The variance s = sigma^2 / n of a client's own estimate around its point."""
        return self.sigma**2 / self.n

    @property
    def between(self) -> float:
        """S / K: tau^2, plus what the adversaries add to it."""
        if not self.adversaries:
            return self.tau**2
        more = self.adversaries / (self.clients - 1) * (self.tau_a**2 - self.tau**2)
        return self.tau**2 + more / self.clients

    @property
    def best_lam(self) -> float:
        """The lam with the smallest expected error of a benign client (theorems 1, 3), or inf."""
        return self.noise / self.between if self.between > 0 else math.inf

    @property
    def least_error(self) -> float:
        """sigma_w,a^2, the error at the best lam: 1 / (1/s + (K - 1) / (S + s)) (eq. 41)."""
        if self.clients == 1 or not self.noise:
            return self.noise
        others = (self.clients - 1) / (self.clients * self.between + self.noise)
        return 1 / (1 / self.noise + others)

    def error(self, lam: float) -> float:
        """E (w_k - hat w_k(lam))^2 of a benign client (exact)."""
        return self._moments(lam)[0]

    def covariance(self, lam: float) -> float:
        """E (e_k e_j) of two benign clients, whose errors both depend on w* (exact)."""
        return self._moments(lam)[1]

    def variance_over_trials(self, lam: float) -> float:
        """The variance of a client's squared error over trials: 2 E[e^2]^2 for normal errors."""
        return 2 * self.error(lam) ** 2

    def variance_across_clients(self, lam: float) -> float:
        """The expected variance (divided by Kb) of squared errors across benign clients."""
        error, shared = self._moments(lam)
        return 2 * (1 - 1 / self.benign) * (error**2 - shared**2)

    def _moments(self, lam: float) -> tuple[float, float]:
        """E e_k^2 and E e_k e_j, from the coefficients of the independent draws.

        e_k = hat w_k(lam) - w_k, with a = lam / (1 + lam), b = 1 - a, z_k = w_k - theta and x_k
        the noise, is (a/K - a) z_k + (a/K + b) x_k + (a/K) sum over others of (z_j + x_j).
        """
        a = 1.0 if math.isinf(lam) else lam / (1 + lam)
        b, m = 1 - a, a / self.clients
        own_z, own_x = m - a, m + b
        s, t, hostile = self.noise, self.tau**2, self.tau_a**2
        malicious = self.adversaries * (hostile + s)
        error = own_z**2 * t + own_x**2 * s + m**2 * ((self.benign - 1) * (t + s) + malicious)
        shared = 2 * m * (own_z * t + own_x * s)
        shared += m**2 * ((self.benign - 2) * (t + s) + malicious)
        return error, shared if self.benign > 1 else 0.0


def fairest_lam(points: Points, most: float = 1e4) -> float:
    """The lam with the smallest expected variance across benign clients, at most `most`.

    Found by golden-section search. One benign client has no variance across clients, whatever lam
    is: then it is the lam with the smallest error.
    """
    if points.benign == 1:
        return min(points.best_lam, most)
    ratio = (math.sqrt(5) - 1) / 2
    low, high = 0.0, most / (1 + most)  # bounds of lam / (1 + lam), in which the function is smooth
    while high - low > 1e-12:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if points.variance_across_clients(left / (1 - left)) < points.variance_across_clients(
            right / (1 - right)
        ):
            high = right
        else:
            low = left
    share = (low + high) / 2
    return share / (1 - share)


def suggested_lam(within: float, between: float, curvature: float = 1.0) -> float:
    """The best lam for measured variances, by the Gaussian model (theorem 1); inf if between = 0.

    `within` is the sampling variance of a client's estimate (or gradient), `between` the variance
    of the true values across clients. `curvature` is h if F_k is close to (h / 2) |w - w_k|^2: the
    pull has to balance it, so lam = h within / between.

    >>> suggested_lam(0.04, 0.04, 2.0)
    2.0
    """
    return curvature * within / between if between > 0 else math.inf
