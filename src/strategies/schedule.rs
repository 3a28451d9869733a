//! Learning rates of training: running sums whose steps have weights.
//!
//! After step t, gradient descent has moved by `Σ_(i≤t) η_i g_i`. So its workload is
//! `A[t,i] = η_i` for i ≤ t: prefix sums times a diagonal. With momentum, m_t = βm_(t−1) + g_t, it
//! has moved by `Σ_(j≤t) η_j m_j`, so `A[t,i] = Σ_(i≤j≤t) η_j β^(j−i)`. Rates are factors of the
//! learning rate; without a file, at most 1.

use std::f64::consts::PI;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hushflow_mechanism::strategy::MAX_DENSE_HORIZON;
use hushflow_mechanism::workload::Workload;
use nalgebra::DMatrix;

use super::StrategiesError;
use super::matrix::read_matrix;

/// Final rate of the shapes. It is not 0, because the optimisers need workloads without vanishing
/// columns.
const LEAST: f64 = 0.01;

/// A learning rate for every step, as written on the command line: `cosine:100`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LearningRates {
    /// A shape after a warm-up, in which rates grow linearly.
    Shape {
        /// Phase after the warm-up.
        shape: RateShape,
        /// Number of steps of the warm-up.
        warm_up: u64,
    },
    /// `file:PATH`: a matrix with one row or one column.
    File(PathBuf),
}

/// Rates after a warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateShape {
    /// `constant`.
    Constant,
    /// `linear`: falls linearly, to 1 % of the largest rate.
    Linear,
    /// `cosine`: falls by half a cosine, to 1 % of the largest rate.
    Cosine,
}

impl FromStr for LearningRates {
    type Err = StrategiesError;

    fn from_str(text: &str) -> Result<Self, StrategiesError> {
        let unknown = || StrategiesError::UnknownSchedule { found: text.into() };
        let (word, rest) = text.split_once(':').unwrap_or((text, "0"));
        let shape = match word {
            "file" if text.contains(':') => return Ok(Self::File(rest.into())),
            "constant" => RateShape::Constant,
            "linear" => RateShape::Linear,
            "cosine" => RateShape::Cosine,
            _ => return Err(unknown()),
        };
        Ok(Self::Shape { shape, warm_up: rest.parse().map_err(|_| unknown())? })
    }
}

impl LearningRates {
    /// Forms of rates on the command line, with their meaning.
    pub const FORMS: &[(&'static str, &'static str)] = &[
        ("constant", "The same rate in all steps."),
        ("constant:W", "After W steps of warm-up, in which rates grow linearly."),
        ("linear", "Rates fall linearly, to 1 % of the largest."),
        ("linear:W", "After W steps of warm-up."),
        ("cosine", "Rates fall by half a cosine, to 1 % of the largest."),
        ("cosine:W", "After W steps of warm-up."),
        ("file:PATH", "A CSV file with a rate for every step, in one row or column."),
    ];

    /// Weighs the steps of a workload by rates that are written as `text`. The path of a file is
    /// relative to `base`. Readers of a log see only the file's name.
    ///
    /// # Errors
    /// [`StrategiesError`].
    pub fn weigh(
        text: &str,
        base: &Path,
        workload: &Workload,
        steps: u64,
    ) -> Result<Workload, StrategiesError> {
        match text.parse()? {
            Self::File(path) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                Self::File(base.join(&path)).workload(&format!("file:{name}"), workload, steps)
            }
            shape => shape.workload(text, workload, steps),
        }
    }

    /// Returns the rates of all steps, written as `text`. The path of a file is relative to `base`.
    ///
    /// # Errors
    /// [`StrategiesError`].
    pub(crate) fn of_steps(text: &str, base: &Path, steps: u64) -> Result<Vec<f64>, StrategiesError> {
        match text.parse()? {
            Self::File(path) => Self::File(base.join(path)).rates(steps),
            Self::Shape { .. } if steps > MAX_DENSE_HORIZON => {
                Err(StrategiesError::ScheduleHorizon { found: steps })
            }
            shape => shape.rates(steps),
        }
    }

    fn rates(&self, steps: u64) -> Result<Vec<f64>, StrategiesError> {
        let (shape, warm_up) = match self {
            Self::File(path) => return from_file(path, steps),
            Self::Shape { shape, warm_up } => (*shape, *warm_up),
        };
        let falling = steps.saturating_sub(warm_up).max(1) as f64;
        let rate = |t: u64| {
            if t <= warm_up {
                return t as f64 / warm_up as f64;
            }
            let done = ((t - warm_up) as f64 - 0.5) / falling;
            let left = match shape {
                RateShape::Constant => 1.0,
                RateShape::Linear => 1.0 - done,
                RateShape::Cosine => 0.5 + 0.5 * (PI * done).cos(),
            };
            LEAST + (1.0 - LEAST) * left
        };
        Ok((1..=steps).map(rate).collect())
    }

    /// The workload of gradient descent with these rates, called `matrix:BASE with NAME`.
    ///
    /// # Errors
    /// [`StrategiesError`] for workloads other than prefix sums and momentum, and for rates that
    /// do not fit.
    pub fn workload(&self, name: &str, base: &Workload, steps: u64) -> Result<Workload, StrategiesError> {
        let decay = match base {
            Workload::Prefix => 0.0,
            Workload::Momentum(decay) => decay.get(),
            _ => return Err(StrategiesError::ScheduleWorkload { found: base.to_string() }),
        };
        if steps > MAX_DENSE_HORIZON {
            return Err(StrategiesError::ScheduleHorizon { found: steps });
        }
        let rates = self.rates(steps)?;
        let unusable = |rate: &&f64| !(rate.is_finite() && **rate > 0.0);
        if let Some((index, found)) = rates.iter().enumerate().find(|(_, rate)| unusable(rate)) {
            return Err(StrategiesError::Rate { step: index + 1, found: *found });
        }
        let mut matrix = DMatrix::zeros(rates.len(), rates.len());
        for i in 0..rates.len() {
            let (mut sum, mut weight) = (0.0, 1.0);
            for t in i..rates.len() {
                sum += rates[t] * weight;
                weight *= decay;
                matrix[(t, i)] = sum;
            }
        }
        Workload::from_matrix(format!("{base} with {name}"), matrix)
            .map_err(|_| StrategiesError::ScheduleHorizon { found: steps })
    }
}

fn from_file(path: &Path, steps: u64) -> Result<Vec<f64>, StrategiesError> {
    let matrix = read_matrix(path)?;
    let line = matrix.nrows() == 1 || matrix.ncols() == 1;
    match line && matrix.len() as u64 == steps {
        true => Ok(matrix.iter().copied().collect()),
        false => Err(StrategiesError::RateCount { path: path.into(), found: matrix.len(), expected: steps }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str, steps: u64) -> Vec<f64> {
        text.parse::<LearningRates>().unwrap().rates(steps).unwrap()
    }

    #[test]
    fn rates_warm_up_and_fall() {
        assert_eq!(rates("constant", 3), [1.0; 3]);
        assert_eq!(rates("constant:2", 4), [0.5, 1.0, 1.0, 1.0]);
        assert_eq!(rates("linear:1", 3), [1.0, 0.7525, 0.2575]);
        let cosine = rates("cosine:2", 10);
        assert!(cosine[1..].windows(2).all(|pair| pair[0] > pair[1]) && cosine[9] > 0.0, "{cosine:?}");
        assert_eq!(rates("linear:9", 4), [1.0, 2.0, 3.0, 4.0].map(|t| t / 9.0));
    }

    #[test]
    fn the_workload_is_prefix_sums_of_weighted_steps() {
        let rates: LearningRates = "linear:1".parse().unwrap();
        let workload = rates.workload("linear:1", &Workload::Prefix, 3).unwrap();
        assert_eq!(workload.to_string(), "matrix:prefix with linear:1");
        let found = [(1, 1), (3, 1), (3, 3), (2, 3)].map(|(t, i)| workload.coefficient(t, i));
        assert_eq!(found, [1.0, 1.0, 0.2575, 0.0]);
        // With a constant rate, momentum is the named workload.
        let momentum: Workload = "momentum:0.5".parse().unwrap();
        let constant =
            "constant".parse::<LearningRates>().unwrap().workload("constant", &momentum, 4).unwrap();
        assert!((constant.matrix(4) - momentum.matrix(4)).amax() < 1e-15);
        let falling = rates.workload("linear:1", &momentum, 3).unwrap();
        assert_eq!(falling.coefficient(3, 1), 1.0 + 0.5 * 0.7525 + 0.25 * 0.2575);
    }

    #[test]
    fn schedules_that_do_not_fit_are_refused() {
        for text in ["", "steps", "cosine:x", "file", "linear:-1"] {
            assert!(text.parse::<LearningRates>().is_err(), "{text}");
        }
        let rates: LearningRates = "cosine".parse().unwrap();
        let refused = |base: &Workload, steps| rates.workload("cosine", base, steps).unwrap_err().to_string();
        assert!(refused(&Workload::Average, 9).contains("`average`"));
        assert!(refused(&Workload::Prefix, 5000).contains("at most 4096"));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rates.csv");
        std::fs::write(&path, "1,0.5,0\n").unwrap();
        let file = LearningRates::File(path);
        let refused = |steps| file.workload("file", &Workload::Prefix, steps).unwrap_err().to_string();
        assert!(refused(3).contains("step 3 is 0") && refused(4).contains("3 learning rates; expected 4"));
    }
}
