//! Strategies as matrices, for sensitivities: the columns of C and their overlaps `X = CᵀC`.
//!
//! C may have more rows than columns (tree and Fourier encoders). A Toeplitz C is never written
//! out: a million steps take a million coefficients, and a diagonal of X takes one pass over them.

use nalgebra::DMatrix;
use thiserror::Error;

/// Largest number of columns of a matrix.
pub const MAX_COLUMNS: usize = 1 << 24;

/// Relative error of computed overlaps: each is within `OVERLAP_ERROR · ‖c_i‖ ‖c_j‖` of `(CᵀC)_ij`.
/// Sums are compensated or pairwise, so the error does not grow with the number of rows.
pub(crate) const OVERLAP_ERROR: f64 = 64.0 * f64::EPSILON;

/// A matrix C, real, with at least one column.
///
/// ```
/// use hushflow_mechanism::strategy::Matrix;
///
/// let banded = Matrix::toeplitz(vec![1.0, 0.5], 4)?;
/// assert_eq!(banded.overlaps(0), [1.25, 1.25, 1.25, 1.0]);
/// assert_eq!(banded.product(&[1.0, 0.0, 0.0, 2.0]), [1.0, 0.5, 0.0, 2.0]);
/// let twice = Matrix::stamped(banded, 2)?;
/// assert_eq!(twice.columns(), 8);
/// # Ok::<(), hushflow_mechanism::strategy::MatrixError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    form: MatrixEntries,
    columns: usize,
    discrepancy: Discrepancy,
}

#[derive(Clone, Debug, PartialEq)]
enum MatrixEntries {
    /// Square, `C[t,i] = coefficients[t−i] · scales[i]`. Without scales all are 1; missing
    /// coefficients are 0.
    Toeplitz {
        coefficients: Vec<f64>,
        scales: Option<Vec<f64>>,
    },
    Dense(DMatrix<f64>),
    Stamped {
        block: Box<Matrix>,
        copies: usize,
    },
}

/// Bound of the distance of the C that runs from the matrix Ĉ that its strategy returns.
///
/// Let u be contributions of norm at most 1, numbers or vectors, at the steps of a pattern of k
/// steps, and V the largest `‖Ĉu‖²` over all such u. Then `‖(C − Ĉ)u‖ ≤ relative·√V + k·column`.
/// This holds with
///
/// - `relative` = η if `C = (I + R)Ĉ` and `‖R‖₂ ≤ η`, because `‖RĈu‖ ≤ η‖Ĉu‖`;
/// - `relative` = η if Ĉ ≥ 0 and `|C − Ĉ| ≤ ηĈ` entry by entry, because row t of `(C − Ĉ)u` has
///   norm at most `η Σ_i Ĉ_ti‖u_i‖`, which is η times row t of Ĉu for the contributions `‖u_i‖`
///   along one axis;
/// - `column` = h if no column of C − Ĉ is longer than h, by the triangle inequality.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Discrepancy {
    /// Relative to the sensitivity.
    pub relative: f64,
    /// Per column, in the units of entries.
    pub column: f64,
}

impl Discrepancy {
    /// For Ĉ = C.
    pub const NONE: Self = Self { relative: 0.0, column: 0.0 };

    /// Bound for a block matrix whose blocks have these two bounds.
    pub(crate) fn of_either(self, other: Self) -> Self {
        Self { relative: self.relative.max(other.relative), column: self.column.max(other.column) }
    }
}

/// Error of a matrix for which no sensitivity can be computed.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum MatrixError {
    /// Too few or too many columns.
    #[error("a strategy has {found} columns, one for each step; expected 1 to {MAX_COLUMNS}")]
    Columns {
        /// Number of columns.
        found: usize,
    },
    /// An entry is NaN or infinite.
    #[error("an entry of a strategy is {found}; all must be finite")]
    NotFinite {
        /// The entry.
        found: f64,
    },
    /// The squares of the entries could overflow or underflow.
    #[error(
        "the largest entry of a strategy is {found:e}; expected between 2^-300 and 2^300: scale the strategy"
    )]
    Magnitude {
        /// Largest absolute value of the entries.
        found: f64,
    },
    /// A matrix without structure is too large to write out.
    #[error(
        "the strategy would have to be written out entry by entry for {found} steps; expected at most {limit}: choose a \
         shorter horizon, or a Toeplitz strategy such as blt:4 or banded-square-root:8"
    )]
    WrittenOut {
        /// Number of steps.
        found: usize,
        /// Largest number of steps.
        limit: usize,
    },
}

impl Matrix {
    /// The lower-triangular `C[t,i] = coefficients[t−i]` with `columns` rows and columns. Missing
    /// coefficients are 0, surplus ones are ignored.
    ///
    /// # Errors
    /// [`MatrixError`] if the number of columns is out of range, or the coefficients are not
    /// finite, all 0, very small or very large.
    pub fn toeplitz(coefficients: Vec<f64>, columns: usize) -> Result<Self, MatrixError> {
        let coefficients = cut(coefficients, columns);
        check(&coefficients, columns)?;
        Ok(Self::exact(MatrixEntries::Toeplitz { coefficients, scales: None }, columns))
    }

    /// The lower-triangular `C[t,i] = coefficients[t−i] · column_scales[i]`, with one column per
    /// scale: the steps are scaled, then encoded.
    ///
    /// # Errors
    /// As [`toeplitz`](Self::toeplitz), for coefficients and scales.
    pub fn scaled_toeplitz(coefficients: Vec<f64>, column_scales: Vec<f64>) -> Result<Self, MatrixError> {
        let columns = column_scales.len();
        let coefficients = cut(coefficients, columns);
        check(&coefficients, columns)?;
        check(&column_scales, columns)?;
        Ok(Self::exact(MatrixEntries::Toeplitz { coefficients, scales: Some(column_scales) }, columns))
    }

    /// Any matrix, with any number of rows.
    ///
    /// # Errors
    /// As [`toeplitz`](Self::toeplitz), for its entries.
    pub fn dense(entries: DMatrix<f64>) -> Result<Self, MatrixError> {
        let columns = entries.ncols();
        check(entries.as_slice(), columns)?;
        Ok(Self::exact(MatrixEntries::Dense(entries), columns))
    }

    /// `copies` of a block along the diagonal: the strategy restarts after every block.
    ///
    /// # Errors
    /// [`MatrixError::Columns`] if the number of columns is out of range.
    pub fn stamped(block: Self, copies: usize) -> Result<Self, MatrixError> {
        let columns = block.columns.saturating_mul(copies);
        check_columns(columns)?;
        let discrepancy = block.discrepancy;
        let form = MatrixEntries::Stamped { block: Box::new(block), copies };
        Ok(Self { discrepancy, ..Self::exact(form, columns) })
    }

    fn exact(form: MatrixEntries, columns: usize) -> Self {
        Self { form, columns, discrepancy: Discrepancy::NONE }
    }

    /// The same matrix as an approximation of a C that differs from it by at most `discrepancy`.
    #[must_use]
    pub fn with_discrepancy(self, discrepancy: Discrepancy) -> Self {
        Self { discrepancy, ..self }
    }

    /// Bound of the distance of the C that runs from this matrix.
    pub fn discrepancy(&self) -> Discrepancy {
        self.discrepancy
    }

    /// η with `‖(C − Ĉ)u‖ ≤ η√V` for contributions at up to `count` steps (see [`Discrepancy`]),
    /// where `√V` is at least the norm of the longest column.
    pub(crate) fn relative_discrepancy(&self, count: usize) -> f64 {
        let Discrepancy { relative, column } = self.discrepancy;
        if column == 0.0 {
            return relative;
        }
        // Covers the rounding of the norm and of these operations.
        (relative + count as f64 * column / self.max_column_norm()) * (1.0 + 2f64.powi(-40))
    }

    /// Norm of the longest column, up to rounding.
    pub(crate) fn max_column_norm(&self) -> f64 {
        self.overlaps(0).into_iter().fold(0.0, f64::max).sqrt()
    }

    /// Number of columns, which is the number of steps.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        match &self.form {
            MatrixEntries::Toeplitz { .. } => self.columns,
            MatrixEntries::Dense(entries) => entries.nrows(),
            MatrixEntries::Stamped { block, copies } => block.rows() * copies,
        }
    }

    /// Whether no entry is negative.
    pub fn is_nonnegative(&self) -> bool {
        let all = |values: &[f64]| values.iter().all(|&value| value >= 0.0);
        match &self.form {
            MatrixEntries::Toeplitz { coefficients, scales } => {
                all(coefficients) && scales.as_deref().is_none_or(all)
            }
            MatrixEntries::Dense(entries) => all(entries.as_slice()),
            MatrixEntries::Stamped { block, .. } => block.is_nonnegative(),
        }
    }

    pub(crate) fn as_toeplitz(&self) -> Option<(&[f64], Option<&[f64]>)> {
        match &self.form {
            MatrixEntries::Toeplitz { coefficients, scales } => Some((coefficients, scales.as_deref())),
            _ => None,
        }
    }

    pub(crate) fn as_stamped(&self) -> Option<(&Self, usize)> {
        match &self.form {
            MatrixEntries::Stamped { block, copies } => Some((block, *copies)),
            _ => None,
        }
    }

    /// All entries.
    pub fn entries(&self) -> DMatrix<f64> {
        match &self.form {
            MatrixEntries::Toeplitz { coefficients, scales } => {
                let scale = |i: usize| scales.as_ref().map_or(1.0, |scales| scales[i]);
                let entry = |t: usize, i: usize| coefficients.get(t.checked_sub(i)?).map(|c| c * scale(i));
                DMatrix::from_fn(self.columns, self.columns, |t, i| entry(t, i).unwrap_or(0.0))
            }
            MatrixEntries::Dense(entries) => entries.clone(),
            MatrixEntries::Stamped { block, copies } => {
                DMatrix::identity(*copies, *copies).kronecker(&block.entries())
            }
        }
    }

    /// Largest distance between two columns that may overlap.
    pub fn reach(&self) -> usize {
        match &self.form {
            MatrixEntries::Toeplitz { coefficients, .. } => coefficients.len() - 1,
            MatrixEntries::Dense(_) => self.columns - 1,
            MatrixEntries::Stamped { block, .. } => block.reach(),
        }
    }

    /// Number of bands of a causal C: steps this far apart, or further, have columns without a
    /// common row. `None` for a C that is not square and lower-triangular.
    pub fn bands(&self) -> Option<usize> {
        match &self.form {
            MatrixEntries::Toeplitz { coefficients, .. } => Some(coefficients.len()),
            MatrixEntries::Dense(entries) if entries.nrows() == entries.ncols() => {
                let lengths = entries.column_iter().enumerate().map(|(i, column)| {
                    let is_causal = column.iter().take(i).all(|&entry| entry == 0.0);
                    let last = column.iter().rposition(|&entry| entry != 0.0).unwrap_or(i);
                    is_causal.then(|| last + 1 - i)
                });
                lengths.collect::<Option<Vec<_>>>()?.into_iter().max()
            }
            MatrixEntries::Dense(_) => None,
            MatrixEntries::Stamped { block, .. } => block.bands(),
        }
    }

    /// A diagonal of X: `X_(i, i+lag)` for i = 0, 1, …. Lag 0 gives the squared column norms. Empty
    /// from `lag = columns` on.
    pub fn overlaps(&self, lag: usize) -> Vec<f64> {
        let length = self.columns.saturating_sub(lag);
        if lag > self.reach() {
            return vec![0.0; length];
        }
        match &self.form {
            MatrixEntries::Toeplitz { coefficients, scales } => {
                let mut diagonal = toeplitz_overlaps(coefficients, lag, length);
                if let Some(scales) = scales {
                    let pairs = scales.iter().zip(&scales[lag..]);
                    diagonal.iter_mut().zip(pairs).for_each(|(value, (one, other))| *value *= one * other);
                }
                diagonal
            }
            MatrixEntries::Dense(_) => (0..length).map(|i| self.overlap(i, i + lag)).collect(),
            MatrixEntries::Stamped { block, copies } => {
                let mut one = block.overlaps(lag);
                one.resize(block.columns, 0.0);
                let mut all = one.repeat(*copies);
                all.truncate(length);
                all
            }
        }
    }

    /// `X_ij = ⟨c_i, c_j⟩`; 0 if either column does not exist.
    pub fn overlap(&self, i: usize, j: usize) -> f64 {
        let (i, j) = (i.min(j), i.max(j));
        if j >= self.columns || j - i > self.reach() {
            return 0.0;
        }
        match &self.form {
            MatrixEntries::Toeplitz { coefficients, scales } => {
                let shifted = &coefficients[j - i..];
                let terms = shifted.len().min(self.columns - j);
                let scale = scales.as_ref().map_or(1.0, |scales| scales[i] * scales[j]);
                dot(&coefficients[..terms], &shifted[..terms]) * scale
            }
            MatrixEntries::Dense(entries) => {
                let column = |i| {
                    let rows = entries.nrows();
                    &entries.as_slice()[i * rows..(i + 1) * rows]
                };
                dot(column(i), column(j))
            }
            MatrixEntries::Stamped { block, .. } => {
                let width = block.columns;
                if i / width == j / width { block.overlap(i % width, j % width) } else { 0.0 }
            }
        }
    }

    /// X between the columns of a pattern.
    pub fn gram(&self, pattern: &[usize]) -> DMatrix<f64> {
        let mut gram = DMatrix::zeros(pattern.len(), pattern.len());
        for (row, &i) in pattern.iter().enumerate() {
            for (column, &j) in pattern.iter().enumerate().take(row + 1) {
                gram[(row, column)] = self.overlap(i, j);
                gram[(column, row)] = gram[(row, column)];
            }
        }
        gram
    }

    /// An upper bound of `−X_ij` over all i ≠ j, at least 0. It is 0 if C has no negative entries
    /// or is diagonal. `None` if there are too many columns to check all pairs.
    pub fn negative_overlap(&self) -> Option<f64> {
        if self.is_nonnegative() || self.reach() == 0 {
            return Some(0.0);
        }
        if let MatrixEntries::Stamped { block, .. } = &self.form {
            return block.negative_overlap();
        }
        let rows = if self.as_toeplitz().is_some() { 1 } else { self.rows() };
        let work = self.reach().saturating_mul(self.columns).saturating_mul(rows);
        (work <= 1 << 32).then(|| {
            let longest = self.overlaps(0).into_iter().fold(0.0, f64::max);
            let lowest = |lag| self.overlaps(lag).into_iter().fold(0.0, f64::min);
            let lowest = (1..=self.reach()).map(lowest).fold(0.0, f64::min);
            OVERLAP_ERROR * longest - lowest
        })
    }

    /// `C x`. Missing entries of `x` are 0, surplus ones are ignored.
    pub fn product(&self, x: &[f64]) -> Vec<f64> {
        let x = &x[..x.len().min(self.columns)];
        let mut y = vec![0.0; self.rows()];
        match &self.form {
            MatrixEntries::Toeplitz { coefficients, scales } => {
                for (i, &value) in x.iter().enumerate().filter(|(_, value)| **value != 0.0) {
                    let value = value * scales.as_ref().map_or(1.0, |scales| scales[i]);
                    y[i..].iter_mut().zip(coefficients).for_each(|(sum, c)| *sum += c * value);
                }
            }
            MatrixEntries::Dense(entries) => {
                for (column, value) in entries.column_iter().zip(x) {
                    y.iter_mut().zip(column.iter()).for_each(|(sum, c)| *sum += c * value);
                }
            }
            MatrixEntries::Stamped { block, .. } => {
                let parts = x.chunks(block.columns).zip(y.chunks_mut(block.rows().max(1)));
                parts.for_each(|(x, y)| y.copy_from_slice(&block.product(x)));
            }
        }
        y
    }
}

/// The first `columns` coefficients, without trailing zeros.
fn cut(mut coefficients: Vec<f64>, columns: usize) -> Vec<f64> {
    coefficients.truncate(columns);
    let used = coefficients.iter().rposition(|&c| c != 0.0).map_or(0, |last| last + 1);
    coefficients.truncate(used);
    coefficients
}

fn check(values: &[f64], columns: usize) -> Result<(), MatrixError> {
    check_columns(columns)?;
    if let Some(&found) = values.iter().find(|value| !value.is_finite()) {
        return Err(MatrixError::NotFinite { found });
    }
    // Squares of entries in this range neither overflow nor lose precision to underflow.
    let found = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let range = 2_f64.powi(-300)..=2_f64.powi(300);
    if range.contains(&found) { Ok(()) } else { Err(MatrixError::Magnitude { found }) }
}

fn check_columns(found: usize) -> Result<(), MatrixError> {
    if (1..=MAX_COLUMNS).contains(&found) { Ok(()) } else { Err(MatrixError::Columns { found }) }
}

/// `Σ_(l<m) c_l c_(l+lag)` for m = `length` down to 1: a column that starts later has fewer rows.
/// Compensated summation (Neumaier).
fn toeplitz_overlaps(coefficients: &[f64], lag: usize, length: usize) -> Vec<f64> {
    let (mut sum, mut lost) = (0.0_f64, 0.0);
    let products = coefficients.iter().zip(&coefficients[lag..]).map(|(one, other)| one * other);
    let mut sums: Vec<f64> = products
        .take(length)
        .map(|product| {
            let next = sum + product;
            let (large, small) = if sum.abs() >= product.abs() { (sum, product) } else { (product, sum) };
            lost += (large - next) + small;
            sum = next;
            sum + lost
        })
        .collect();
    sums.resize(length, sum + lost);
    sums.reverse();
    sums
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let length = a.len().min(b.len());
    if length <= 64 {
        return a.iter().zip(b).map(|(a, b)| a * b).sum();
    }
    let half = length / 2;
    dot(&a[..half], &b[..half]) + dot(&a[half..length], &b[half..length])
}

#[cfg(test)]
mod tests;
