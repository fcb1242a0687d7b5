"""Curvature of a trained FNO: Hessian-vector products, sharpness, spectrum, gradcheck, cost."""

from time import perf_counter

import matplotlib.pyplot as plt
import scipy.sparse.linalg
import torch

import probneural as pn
from probneural.curvature import (
    CurvatureProblem,
    Minibatches,
    ParameterVector,
    QuadratureGaussian,
    fisher_vector_product,
    gauss_newton_vector_product,
    hessian_vector_product,
    jacobian_vector_product,
    spectral_density,
    top_eigenpairs,
    vector_jacobian_product,
    xdiag,
)
from probneural.curvature.products.linear_operators import Hessian

SAMPLES, WIDTH, EPOCHS, PROBES = 64, 8, 60, 4

burgers = pn.problems.Burgers(viscosity=0.1)
train = burgers.sample(SAMPLES, resolution=64, seed=0, dtype=torch.float64)
operator = pn.operators.FNO(1, 1, modes=(8,), width=WIDTH, depth=2, seed=0).double()
pn.fit(operator, train, epochs=EPOCHS, seed=0, show_progress=False)
operator.eval()

# L(θ) = 1/2 Σ_i precision · mean over the domain of (f_θ(a_i) - u_i)², relative to E u².
mean_square = train.outputs.values.square().mean()
likelihood = QuadratureGaussian.of(train.outputs.grid, 1 / (SAMPLES * mean_square[None]))
problem = CurvatureProblem(
    operator,
    train.inputs,
    targets=train.outputs,
    layout=ParameterVector.of(operator),
    likelihood=likelihood,
    batches=Minibatches(size=32),
)
theta = problem.parameters  # (P,), complex weights as pairs of real numbers
generator = torch.Generator().manual_seed(0)
v = torch.randn(len(theta), dtype=torch.float64, generator=generator)

# For one vector (P,) or a block (s, P): H v, G v = Jᵀ diag(w) J v, F v = Σ g_i (g_iᵀ v).
hessian_v = hessian_vector_product(problem, theta, v)
gauss_newton_v = gauss_newton_vector_product(problem, theta, v)
fisher_v = fisher_vector_product(problem, theta, v)
jacobian_v = jacobian_vector_product(problem, theta, v)  # J v, (n, c, p)
transposed = vector_jacobian_product(problem, theta, likelihood.weights * jacobian_v)
print("G v is Jᵀ diag(w) J v:", torch.allclose(gauss_newton_v, transposed, rtol=1e-9))
print(
    f"norms of H v {hessian_v.norm():.1f}, G v {gauss_newton_v.norm():.1f}, "
    f"F v {fisher_v.norm():.2e}"
)

# Sharpness: the largest eigenvalue of H. H is indefinite, so SciPy's Lanczos takes it.
hessian = Hessian(theta, problem)
largest = scipy.sparse.linalg.eigsh(hessian.to_scipy(), k=3, which="LA", return_eigenvectors=False)
smallest = scipy.sparse.linalg.eigsh(hessian.to_scipy(), k=1, which="SA", return_eigenvectors=False)
print("largest eigenvalues of H:", " ".join(f"{value:.1f}" for value in sorted(largest)[::-1]))
print(f"smallest eigenvalue of H: {smallest[0]:.2f}")


# G is positive semi-definite: certified eigenpairs, trace and diagonal from products alone.
def product(vectors):
    return gauss_newton_vector_product(problem, theta, vectors)


size = problem.size
pairs = top_eigenpairs(product, size, rank=10, tolerance=1e-3)
print(f"largest eigenvalue of G: {pairs.values[0]:.1f} +- {pairs.residuals[0]:.1e}")
measure = spectral_density(product, size, probes=PROBES, steps=30, deflate=pairs)
trace, error = measure.trace(lambda eigenvalues: eigenvalues)
diagonal = xdiag(product, size, products=60)
print(f"trace of G: {trace:.1f} +- {error:.1e}; by its diagonal {diagonal.values.sum():.1f}")

# The products are differentiable in θ and v, to any order.
direction = torch.randn(len(theta), dtype=torch.float64, generator=generator) / len(theta) ** 0.5
step = torch.zeros((), dtype=torch.float64, requires_grad=True)
is_right = torch.autograd.gradcheck(
    lambda s: hessian_vector_product(problem, theta + s * direction, v)[:20], step, rtol=1e-4
)
print("gradcheck of H v in θ:", is_right)


def seconds(function):
    """Return the shortest of five times."""
    times = []
    for _ in range(5):
        start = perf_counter()
        function()
        times.append(perf_counter() - start)
    return min(times)


def gradient():
    """Evaluate the gradient of the loss, minibatch by minibatch."""
    variable = theta.clone().requires_grad_()
    for rows in problem.minibatches():
        torch.autograd.grad(problem.loss(variable, rows), variable)


unit = seconds(gradient)
print(f"{size} parameters; cost in gradients of the loss:")
for name, curvature_product in (
    ("H v", lambda: hessian_vector_product(problem, theta, v)),
    ("G v", lambda: product(v)),
    ("H v, linearised once", lambda: hessian @ v),
):
    curvature_product()
    print(f"  {name}: {seconds(curvature_product) / unit:.1f}")

figure, axes = plt.subplots(figsize=(6, 3.5))
axes.semilogy(range(1, len(pairs.values) + 1), pairs.values, "o", label="largest, converged")
nodes, weights = measure.nodes.flatten(), measure.weights.flatten() / PROBES
order = nodes.argsort(descending=True)
ranks = len(pairs.values) + weights[order].cumsum(0)
axes.semilogy(ranks, nodes[order].clamp_min(1e-12), label="others, by Lanczos quadrature")
axes.set(xlabel="rank", ylabel="eigenvalue of G", ylim=(1e-9, None), xscale="log")
axes.legend()
figure.tight_layout()
figure.savefig("curvature_of_an_operator.png", dpi=120)
