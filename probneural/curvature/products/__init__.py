"""Products with Hessian, Gauss-Newton and Fisher matrices and with Jacobians, differentiable and in minibatches."""
