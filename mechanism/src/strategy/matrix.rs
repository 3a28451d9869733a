//! How errors and sensitivities see an encoder C.

use nalgebra::DMatrix;

/// C for a number of steps, in the shape that saves the most work.
#[derive(Clone, Debug, PartialEq)]
pub enum Matrix {
    /// Lower-triangular, `C[t,i] = c_(t−i)`: all c, one for every step.
    Toeplitz(Vec<f64>),
    /// Lower-triangular, `C[t,i] = c_(t−i) s_i`.
    ScaledToeplitz {
        /// All c, one for every step.
        coefficients: Vec<f64>,
        /// All s, one for every step.
        column_scales: Vec<f64>,
    },
    /// Any matrix with a column for every step.
    Dense(DMatrix<f64>),
    /// The same block again and again on the diagonal.
    Stamped {
        /// One copy.
        block: Box<Matrix>,
        /// How many.
        copies: usize,
    },
}
