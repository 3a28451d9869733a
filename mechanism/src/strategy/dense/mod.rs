//! Strategies given entry by entry: any lower-triangular C with a positive diagonal, for a horizon
//! of at most [`MAX_DENSE_HORIZON`] steps.
//!
//! C is scaled so that its longest column has norm 1, and rounded to integers in units of
//! 2^-[`COEFFICIENT_BITS`]. These integers are the C that runs, is evaluated and is stored. Scaling
//! C does not change errors, because the decoder scales inversely.
//!
//! Memory: all earlier rows, 16 bytes per coordinate and row in the encoder and 8 in the decoder.
//! If C has b bands, only the last b − 1 rows are kept. To encode a step takes one multiplication
//! for each kept row and one for the new row.
//!
//! # Encoding and decoding
//! The encoder computes `C x` exactly in integers modulo 2¹²⁸ (see [`Encoder`]), the decoder `C⁻¹
//! y` in floating point.

mod banded;
mod banded_inverse;
mod banded_toeplitz;
mod optimum;
mod parameters;
mod root;
mod variable_banded;

use super::{
    COEFFICIENT_BITS, ColumnGeometry, Decoder, Encoder, Factorization, Matrix, MatrixError, RowNorms,
    Specification, Strategy, StrategyError, StrategyName, StrategyParameters, gram,
};
use crate::strategy::step::{History, Identification};
use crate::strategy::{StepError, step};
use crate::workload::Workload;
pub(super) use banded::BANDED_OPTIMAL;
pub(super) use banded_inverse::{BANDED_INVERSE_FRACTIONAL_ROOT, BANDED_INVERSE_OPTIMAL};
pub(super) use banded_toeplitz::BANDED_TOEPLITZ_OPTIMAL;
use faer::linalg::triangular_solve::solve_upper_triangular_in_place;
use faer::{Mat, Par};
use nalgebra::DMatrix;
pub(super) use optimum::{COA, OPTIMAL, optimum};
pub use parameters::DenseParameters;
pub(super) use root::MATRIX_SQUARE_ROOT;
use std::iter;
use std::ops::Range;
use std::sync::Arc;
pub(super) use variable_banded::{VARIABLE_BANDED, bands_for_window};

/// Longest horizon of a strategy given entry by entry.
pub const MAX_DENSE_HORIZON: u64 = 4096;

/// A lower-triangular C with integer entries.
///
/// ```
/// use hushflow_mechanism::strategy::{Dense, Factorization, Strategy};
/// use hushflow_mechanism::workload::Workload;
/// use nalgebra::DMatrix;
///
/// let c = DMatrix::from_row_slice(2, 2, &[1.0, 0.0, 0.5, 1.0]);
/// let strategy = Dense::new("optimal".parse()?, &c)?;
/// let errors: Vec<f64> = strategy.decoder_row_norms(&Workload::Prefix, 2).collect();
/// let norm_squared = strategy.geometry().max_norm_squared;
/// assert!((norm_squared * errors[1].powi(2) - 1.25 * 1.25).abs() < 1e-11);
/// # Ok::<(), hushflow_mechanism::strategy::StrategyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dense {
    name: StrategyName,
    entries: Arc<DenseParameters>,
    geometry: ColumnGeometry,
}

impl Dense {
    /// Scales C so that its longest column has norm 1, and rounds it to exact entries.
    ///
    /// # Errors
    /// [`StrategyError::Horizon`] for a horizon of 0 or more than [`MAX_DENSE_HORIZON`] steps;
    /// [`StrategyError::NotSquare`], [`StrategyError::NotFinite`], [`StrategyError::NotCausal`] and
    /// [`StrategyError::Singular`] for a C that is not a finite lower-triangular matrix with a
    /// diagonal that stays positive when rounded.
    pub fn new(name: StrategyName, c: &DMatrix<f64>) -> Result<Self, StrategyError> {
        let entries = DenseParameters::round(&name, c)?;
        Self::from_parameters(name, entries)
    }

    /// Rebuilds exactly the same strategy from its [`parameters`](Self::parameters).
    ///
    /// # Errors
    /// [`StrategyError::Horizon`] for more than [`MAX_DENSE_HORIZON`] steps.
    pub fn from_parameters(name: StrategyName, entries: DenseParameters) -> Result<Self, StrategyError> {
        super::check_horizon(&name, entries.steps() as u64, MAX_DENSE_HORIZON)?;
        let geometry = ColumnGeometry::exact(
            gram::round_up(entries.max_squared_norm(entries.steps())),
            negative_overlap(&entries),
        );
        Ok(Self { name, entries: Arc::new(entries), geometry })
    }

    /// The entries, for storage.
    pub fn parameters(&self) -> &DenseParameters {
        &self.entries
    }

    /// Number of earlier rows that a step uses.
    fn kept(&self) -> usize {
        self.entries.bands() - 1
    }

    fn within_horizon(&self, steps: u64) -> usize {
        steps.min(self.entries.steps() as u64) as usize
    }
}

/// A block of A, transposed: one row for each of `columns`, one column for each of `rows`, counted
/// from 0.
pub(super) fn transposed_workload(
    workload: &Workload,
    rows: Range<usize>,
    columns: Range<usize>,
) -> Mat<f64> {
    let divisors: Vec<f64> = rows.clone().map(|t| workload.row_divisor(t as u64 + 1)).collect();
    match workload.toeplitz_part(rows.end) {
        None => Mat::from_fn(columns.len(), rows.len(), |i, t| {
            workload.coefficient((rows.start + t + 1) as u64, (columns.start + i + 1) as u64)
        }),
        Some(toeplitz) => Mat::from_fn(columns.len(), rows.len(), |i, t| {
            let lag = (rows.start + t).checked_sub(columns.start + i);
            lag.map_or(0.0, |lag| toeplitz[lag] / divisors[t])
        }),
    }
}

/// Squared norms of the rows of `A C⁻¹`, given `Aᵀ` and a lower-triangular C.
pub(super) fn squared_row_norms(mut transposed: Mat<f64>, c: &Mat<f64>) -> Vec<f64> {
    solve_upper_triangular_in_place(c.transpose(), transposed.as_mut(), Par::Seq);
    transposed.col_iter().map(|row| row.squared_norm_l2()).collect()
}

pub(super) fn square(matrix: &Matrix) -> Option<Mat<f64>> {
    let entries = (matrix.rows() == matrix.columns()).then(|| matrix.entries())?;
    Some(Mat::from_fn(entries.nrows(), entries.ncols(), |t, i| entries[(t, i)]))
}

/// The strategy with the entries that an optimiser or a file gave.
pub(super) fn of_parameters(specification: &Specification<'_>) -> Result<Arc<dyn Strategy>, StrategyError> {
    match specification.fitted {
        Some(StrategyParameters::Dense(entries)) => {
            Ok(Arc::new(Dense::from_parameters(specification.name.clone(), entries.clone())?))
        }
        _ => Err(StrategyError::NotFitted { strategy: specification.name.to_string() }),
    }
}

fn real(entry: i64) -> f64 {
    entry as f64 * 0.5f64.powi(COEFFICIENT_BITS as i32)
}

/// Upper bound of `−(CᵀC)_ij` over all i ≠ j, at least 0.
///
/// The entries of C are exact in floating point. An inner product of n terms, summed in any order,
/// with or without fused multiplications, is off by at most `γ_n Σ|a||b| ≤ γ_n ‖a‖‖b‖` with
/// `γ_n = nu/(1 − nu)`, u = 2^-53 (Higham, Accuracy and Stability of Numerical Algorithms, 2002,
/// eq. 3.5). Two units per term are charged.
fn negative_overlap(entries: &DenseParameters) -> f64 {
    if entries.is_non_negative() {
        return 0.0;
    }
    let steps = entries.steps();
    let c = entries.to_mat(steps);
    let gram = c.transpose() * &c;
    let pairs = (0..steps).flat_map(|j| (0..j).map(move |i| (i, j)));
    let lowest = pairs.map(|(i, j)| gram[(i, j)]).fold(0.0, f64::min);
    let margin = steps as f64 * f64::EPSILON * gram::round_up(entries.max_squared_norm(steps));
    (margin - lowest).next_up()
}

impl Factorization for Dense {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn horizon(&self) -> Option<u64> {
        Some(self.entries.steps() as u64)
    }

    fn matrix(&self, steps: u64) -> Result<Matrix, MatrixError> {
        let steps = self.within_horizon(steps);
        Matrix::dense(DMatrix::from_fn(steps, steps, |t, i| real(self.entries.entry(t, i))))
    }

    fn max_column_norm_squared(&self, steps: u64) -> f64 {
        gram::round_up(self.entries.max_squared_norm(self.within_horizon(steps)))
    }

    fn decoder_row_norms(&self, workload: &Workload, steps: u64) -> RowNorms<'_> {
        let steps = self.within_horizon(steps);
        let rows = transposed_workload(workload, 0..steps, 0..steps);
        let squares = squared_row_norms(rows, &self.entries.to_mat(steps));
        Box::new(squares.into_iter().map(f64::sqrt))
    }
}

impl Strategy for Dense {
    fn geometry(&self) -> ColumnGeometry {
        self.geometry
    }

    fn encoder_bytes(&self) -> usize {
        self.kept() * size_of::<i128>()
    }

    fn encoder(&self, coordinates: usize) -> Box<dyn Encoder> {
        Box::new(DenseEncoder::new(self, coordinates))
    }

    fn decoder(&self, coordinates: usize) -> Box<dyn Decoder> {
        Box::new(DenseDecoder::new(self, coordinates))
    }
}

impl DenseParameters {
    fn to_mat(&self, steps: usize) -> Mat<f64> {
        Mat::from_fn(steps, steps, |t, i| real(self.entry(t, i)))
    }
}

const STATE_VERSION: u64 = 1;

/// Keeps the rows themselves. A saved encoder holds them in ring order, 16 bytes per coordinate.
struct DenseEncoder {
    strategy: Dense,
    identification: Identification,
    history: History<i128>,
}

impl DenseEncoder {
    fn new(strategy: &Dense, coordinates: usize) -> Self {
        let entries = &strategy.entries;
        let identification = Identification {
            version: STATE_VERSION,
            fingerprint: step::fingerprint(entries.all().iter().flat_map(|m| m.to_le_bytes())),
            coordinates,
            horizon: Some(entries.steps() as u64),
        };
        let history = History::new(coordinates, strategy.kept());
        Self { strategy: strategy.clone(), identification, history }
    }
}

impl Encoder for DenseEncoder {
    fn steps(&self) -> u64 {
        self.history.steps()
    }

    fn encode(&mut self, x: &[i128], y: &mut [i128]) -> Result<(), StepError> {
        self.history.check_step(self.identification.horizon, [x.len(), y.len()])?;
        y.fill(0);
        let coefficients = self.strategy.entries.row(self.steps() as usize).iter().rev();
        for (&m, row) in coefficients.zip(iter::once(x).chain(self.history.newest_first())) {
            y.iter_mut().zip(row).for_each(|(y, &x)| *y = y.wrapping_add(x.wrapping_mul(m.into())));
        }
        self.history.push(x);
        Ok(())
    }

    fn save(&self) -> Vec<u8> {
        self.identification.save(self.steps(), self.history.values())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StepError> {
        let (steps, rows) = self.identification.read(state)?;
        let rows = step::sums(rows)?;
        self.history = self.history.replaced(steps, rows).ok_or(step::wrong_length())?;
        Ok(())
    }
}

/// Forward substitution, `x_t = (y_t − Σ_(i<t) m_ti x_i) / m_tt`, with the entries of the encoder.
struct DenseDecoder {
    strategy: Dense,
    history: History<f64>,
}

impl DenseDecoder {
    fn new(strategy: &Dense, coordinates: usize) -> Self {
        Self { strategy: strategy.clone(), history: History::new(coordinates, strategy.kept()) }
    }
}

impl Decoder for DenseDecoder {
    fn steps(&self) -> u64 {
        self.history.steps()
    }

    fn decode(&mut self, y: &[f64], x: &mut [f64]) -> Result<(), StepError> {
        let entries = &self.strategy.entries;
        self.history.check_step(Some(entries.steps() as u64), [y.len(), x.len()])?;
        x.copy_from_slice(y);
        let row = entries.row(self.steps() as usize);
        let (diagonal, earlier) = row.split_last().expect("a row of a lower triangle has a diagonal entry");
        for (&m, row) in earlier.iter().rev().zip(self.history.newest_first()) {
            let coefficient = real(m);
            x.iter_mut().zip(row).for_each(|(x, earlier)| *x -= coefficient * earlier);
        }
        let diagonal = real(*diagonal);
        x.iter_mut().for_each(|x| *x /= diagonal);
        self.history.push(x);
        Ok(())
    }

    fn save(&self) -> Vec<f64> {
        self.history.values().to_vec()
    }

    fn restore(&mut self, steps: u64, state: &[f64]) -> Result<(), StepError> {
        let horizon = self.strategy.entries.steps() as u64;
        self.history = self.history.resumed(Some(horizon), steps, state)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{OPTIMAL, *};
    use crate::strategy::{Dense, Strategy, conformance};
    use nalgebra::DMatrix;
    use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

    /// Entries of any sign below a dominant diagonal, with any number of bands.
    fn lower(steps: usize, bands: usize, seed: f64) -> DMatrix<f64> {
        let entry = |t: usize, i: usize| ((t * 31 + i * 17) as f64 * seed).sin() / (t - i + 1) as f64;
        DMatrix::from_fn(steps, steps, |t, i| match t.checked_sub(i) {
            Some(0) => 1.5 + entry(t, i),
            Some(lag) if lag < bands => entry(t, i),
            _ => 0.0,
        })
    }

    #[test]
    fn streaming_agrees_with_the_matrix() {
        for workload in
            ["prefix", "average", "exponential:0.9", "window:3", "window-mean:3", "momentum:0.9", "adam:0.9"]
        {
            for (steps, bands) in [(1, 1), (2, 2), (24, 24), (24, 5)] {
                let strategy = Dense::new(OPTIMAL.name(), &lower(steps, bands, 0.7)).unwrap();
                assert_eq!(strategy.encoder_bytes(), 16 * (bands - 1));
                conformance::check(&strategy, &workload.parse().unwrap(), steps);
            }
        }
        let workload = Workload::from_matrix("any", lower(12, 12, 0.3)).unwrap();
        conformance::check(&Dense::new(OPTIMAL.name(), &lower(12, 4, 0.5)).unwrap(), &workload, 12);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]

        #[test]
        fn any_matrix_streams_and_is_stored(steps in 1usize..14, bands in 1usize..14, seed in 0.01..9.0f64) {
            let strategy = Dense::new(OPTIMAL.name(), &lower(steps, bands, seed)).unwrap();
            conformance::check(&strategy, &Workload::Prefix, steps);
            let json = serde_json::to_string(strategy.parameters()).unwrap();
            prop_assert_eq!(json.len(), 2 + 7 * steps * (steps + 1) / 2);
            let again: DenseParameters = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(&again, strategy.parameters());
        }
    }

    #[test]
    fn the_overlap_is_bounded_tightly() {
        let check = |rows: [f64; 4], expected: f64| {
            let c = DMatrix::from_row_slice(2, 2, &rows);
            let found = Dense::new(OPTIMAL.name(), &c).unwrap().geometry();
            assert!(found.negative_overlap >= expected && found.negative_overlap <= expected + 1e-11);
            assert!((found.max_norm_squared - 1.0).abs() < 1e-11, "{found:?}");
        };
        check([1.0, 0.0, 0.0, 1.0], 0.0);
        check([0.8, 0.0, -0.6, 1.0], 0.6 - 1e-12);
        check([8e300, 0.0, -6e300, 1e301], 0.6 - 1e-12);
        check([8e-300, 0.0, -6e-300, 1e-299], 0.6 - 1e-12);
    }

    #[test]
    fn scaling_changes_no_error() {
        let c = lower(20, 20, 0.7);
        let loss = |scale: f64| {
            let strategy = Dense::new(OPTIMAL.name(), &(&c * scale)).unwrap();
            let squares: f64 =
                strategy.decoder_row_norms(&Workload::Prefix, 20).map(|norm| norm * norm).sum();
            squares * strategy.geometry().max_norm_squared
        };
        assert!((loss(1.0) / loss(1e-7) - 1.0).abs() < 1e-10);
    }

    fn strategy() -> Dense {
        Dense::new(OPTIMAL.name(), &DMatrix::from_row_slice(2, 2, &[1.0, 0.0, -0.5, 1.0])).unwrap()
    }

    #[test]
    fn encoding_is_exact_modulo_the_range() {
        let encoded = |rows: [i128; 2]| {
            let (mut encoder, mut y) = (strategy().encoder(1), [0]);
            rows.map(|x| {
                encoder.encode(&[x], &mut y).unwrap();
                y[0]
            })
        };
        let ([a, b], [_, c], far) = (encoded([1, 0]), encoded([0, 1]), i128::MAX >> 20);
        let expected = [far.wrapping_mul(a), far.wrapping_mul(b).wrapping_add(7 * c)];
        assert_eq!(encoded([far, 7]), expected);
    }

    #[test]
    fn saved_bytes_agree_with_version_1() {
        let mut encoder = strategy().encoder(1);
        encoder.encode(&[-2], &mut [0]).unwrap();
        let header = [1, 0, 1, 1].map(u64::to_le_bytes).concat();
        let saved = encoder.save();
        assert_eq!((&saved[..8], &saved[16..32]), (&header[..8], &header[16..]));
        assert_eq!(saved[32..], (-2i128).to_le_bytes());
    }

    #[test]
    fn a_state_of_another_matrix_is_refused() {
        let other = Dense::new(OPTIMAL.name(), &DMatrix::identity(2, 2)).unwrap();
        let error = strategy().encoder(1).restore(&other.encoder(1).save()).unwrap_err();
        assert!(error.to_string().contains("another strategy"), "{error}");
    }
}
