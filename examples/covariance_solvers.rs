//! Compares solvers for the entries that PACE measures (Figures 3 and 4 of Ferrando et al. 2026):
//! the interior-point completion of maximum entropy, the same with all columns in one component,
//! and projected gradients of the least squares from zeros and from ones where nothing was
//! measured.
//!
//! ```sh
//! cargo run --release --example covariance_solvers -- 5 0.1,1,10 table.csv ...
//! ```
//!
//! The arguments are the number of runs, the budgets ρ, and CSV files of numbers between −1 and 1
//! without a header. Noise is seeded. For each solver it prints the mean Frobenius error and the
//! mean seconds. Results are in `docs/covariance.md`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example prints its results")]

use hushflow::estimators::covariance::completion::Completion;
use hushflow::estimators::covariance::{
    CovarianceBudget, CovarianceMethod, CovarianceSample, EntryMeasurement,
};
use hushflow::mechanism::accounting::Rho;
use hushflow::mechanism::noise::NoiseSource;
use hushflow::mechanism::sensitivity::Neighbours;
use nalgebra::{DMatrix, SymmetricEigen};
use std::error::Error;
use std::time::Instant;

/// Share of the precision of a measured entry that joins columns and changes nothing else.
const NEGLIGIBLE: f64 = 1e-12;

/// Maximum number of gradient steps, and the relative change at which they end.
const MAX_STEPS: usize = 2000;
const LEAST_CHANGE: f64 = 1e-7;

const SOLVERS: [&str; 4] = ["interior", "interior_one_component", "gradients_from_0", "gradients_from_1"];

/// The completion of maximum entropy. With `joined`, all columns are in one component.
fn interior(measured: &[EntryMeasurement], columns: usize, joined: bool) -> DMatrix<f64> {
    let precision = |entry: &EntryMeasurement| entry.deviation.powi(-2);
    let mut diagonal = vec![(0.0, 0.0); columns];
    let is_diagonal = |entry: &&EntryMeasurement| entry.row == entry.column;
    measured
        .iter()
        .filter(is_diagonal)
        .for_each(|entry| diagonal[entry.row] = (entry.value, precision(entry)));
    let mut completion = Completion::of_diagonal(&diagonal);
    for entry in measured.iter().filter(|entry| !is_diagonal(entry)) {
        completion.measure(entry.row, entry.column, entry.value, precision(entry));
    }
    for row in if joined { 1..columns } else { 0..0 } {
        if !measured.iter().any(|entry| (entry.row, entry.column) == (row, row - 1)) {
            completion.measure(row, row - 1, 0.0, NEGLIGIBLE * diagonal[row].1);
        }
    }
    completion.finish();
    completion.matrix()
}

/// Minimises the weighted squares of the measured entries over semidefinite matrices, by projected
/// gradients from a matrix with `start` where nothing was measured.
fn gradients(measured: &[EntryMeasurement], columns: usize, start: f64) -> DMatrix<f64> {
    let most = measured.iter().map(|entry| entry.deviation.powi(-2)).fold(0.0, f64::max);
    let mut matrix = DMatrix::from_element(columns, columns, start);
    let mut set = |entry: &EntryMeasurement| {
        matrix[(entry.row, entry.column)] = entry.value;
        matrix[(entry.column, entry.row)] = entry.value;
    };
    measured.iter().for_each(&mut set);
    matrix = projected(&matrix);
    for _ in 0..MAX_STEPS {
        let mut next = matrix.clone();
        for entry in measured {
            let step = entry.deviation.powi(-2) / most * (matrix[(entry.row, entry.column)] - entry.value);
            next[(entry.row, entry.column)] -= step;
            if entry.row != entry.column {
                next[(entry.column, entry.row)] -= step;
            }
        }
        let next = projected(&next);
        let change = (&next - &matrix).norm();
        matrix = next;
        if change <= LEAST_CHANGE * matrix.norm() {
            break;
        }
    }
    matrix
}

/// The nearest semidefinite matrix.
fn projected(matrix: &DMatrix<f64>) -> DMatrix<f64> {
    let eigen = SymmetricEigen::new(matrix.clone());
    let raised = DMatrix::from_diagonal(&eigen.eigenvalues.map(|value| value.max(0.0)));
    &eigen.eigenvectors * raised * eigen.eigenvectors.transpose()
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [runs, budgets, files @ ..] = &arguments[..] else {
        eprintln!("usage: covariance_solvers RUNS RHO,RHO,... TABLE.csv ...");
        return Ok(());
    };
    let runs: u64 = runs.parse()?;
    let seconds = SOLVERS.map(|solver| format!("{solver}_seconds"));
    println!("table,rows,columns,rho,pairs,{},{}", SOLVERS.join(","), seconds.join(","));
    for file in files {
        let text = std::fs::read_to_string(file)?;
        let columns = text.lines().next().ok_or("an empty table")?.split(',').count();
        let values = text.lines().flat_map(|line| line.split(',')).map(str::parse);
        let values: Vec<f64> = values.collect::<Result<_, _>>()?;
        let rows = DMatrix::from_row_slice(values.len() / columns, columns, &values);
        let truth = rows.tr_mul(&rows) / rows.nrows() as f64;
        let bounds = vec![(-1.0, 1.0); columns];
        let sample = CovarianceSample::new(&bounds, &values, Neighbours::ReplaceOneInPlace)?;
        for rho in budgets.split(',') {
            let (mut errors, mut times, mut pairs) = ([0.0; 4], [0.0; 4], 0);
            for seed in 1..=runs {
                let mut generator = NoiseSource::Seeded(seed).generator(1, 0)?;
                let budget = CovarianceBudget::new(Rho::new(rho.parse()?)?);
                let found = CovarianceMethod::Pace.estimate(&sample, None, budget, &mut generator)?;
                pairs += found.measured_pairs();
                let measured = &found.measurements;
                for (solver, (error, seconds)) in errors.iter_mut().zip(&mut times).enumerate() {
                    let started = Instant::now();
                    let matrix = match solver {
                        0 | 1 => interior(measured, columns, solver == 1),
                        _ => gradients(measured, columns, f64::from(solver as u8 - 2)),
                    };
                    *seconds += started.elapsed().as_secs_f64() / runs as f64;
                    *error += (matrix - &truth).norm() / runs as f64;
                }
            }
            let text = |numbers: [f64; 4]| numbers.map(|number| format!("{number:.4}")).join(",");
            let pairs = pairs as f64 / runs as f64;
            println!("{file},{},{columns},{rho},{pairs},{},{}", rows.nrows(), text(errors), text(times));
        }
    }
    Ok(())
}
