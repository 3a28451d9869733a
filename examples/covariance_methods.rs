//! Compares the methods of private covariances on tables of numbers: the mean Frobenius error of
//! each method for each ρ. Or, with `regress:` before the methods, the mean squared error of
//! private regressions of the last column, relative to its second moment, on every fifth row, from
//! the other rows (Figure 5 of Ferrando et al. 2026; `ssp` makes it AdaSSP).
//!
//! ```sh
//! cargo run --example covariance_methods -- all 10 0.01,1 table.csv ...
//! cargo run --example covariance_methods -- regress:pace,ssp 10 0.1,1 table.csv ...
//! ```
//!
//! The arguments are the methods, the number of runs, the budgets ρ, and CSV files of numbers
//! between −1 and 1 without a header. Noise is seeded. Results are in `docs/covariance.md`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks to its reader")]

use hushflow::estimators::covariance::estimate::regress;
use hushflow::estimators::covariance::{CovarianceBudget, CovarianceMethod, CovarianceSample};
use hushflow::mechanism::accounting::Rho;
use hushflow::mechanism::noise::NoiseSource;
use hushflow::mechanism::sensitivity::Neighbours;
use nalgebra::DMatrix;
use std::error::Error;
use std::path::Path;

/// A table with its exact second moments.
struct Table {
    name: String,
    columns: usize,
    values: Vec<f64>,
    truth: DMatrix<f64>,
}

impl Table {
    fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let text = std::fs::read_to_string(path)?;
        let columns = text.lines().next().ok_or("an empty table")?.split(',').count();
        let values = text.lines().flat_map(|line| line.split(',')).map(str::parse);
        let values: Vec<f64> = values.collect::<Result<_, _>>()?;
        let rows = DMatrix::from_row_slice(values.len() / columns, columns, &values);
        let truth = rows.transpose() * &rows / rows.nrows() as f64;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, columns, values, truth })
    }

    /// Mean Frobenius error of a method over seeds 1 to `runs`.
    fn error(&self, method: CovarianceMethod, rho: f64, runs: u64) -> Result<f64, Box<dyn Error>> {
        let bounds = vec![(-1.0, 1.0); self.columns];
        let sample = CovarianceSample::new(&bounds, &self.values, Neighbours::ReplaceOneInPlace)?;
        let mut sum = 0.0;
        for seed in 1..=runs {
            let mut generator = NoiseSource::Seeded(seed).generator(1, 0)?;
            let budget = CovarianceBudget::new(Rho::new(rho)?);
            let found = method.estimate(&sample, None, budget, &mut generator)?;
            sum += (found.covariance - &self.truth).norm();
        }
        Ok(sum / runs as f64)
    }
}

impl Table {
    /// Mean over seeds 1 to `runs` of the relative squared error of predictions of the last column.
    fn regression_error(&self, method: CovarianceMethod, rho: f64, runs: u64) -> Result<f64, Box<dyn Error>> {
        let (target, rows) = (self.columns - 1, self.values.chunks_exact(self.columns));
        let of = |tested| rows.clone().enumerate().filter(move |(i, _)| (i % 5 == 0) == tested);
        let train: Vec<f64> = of(false).flat_map(|(_, row)| row.iter().copied()).collect();
        let bounds = vec![(-1.0, 1.0); self.columns];
        let sample = CovarianceSample::new(&bounds, &train, Neighbours::ReplaceOneInPlace)?;
        let mut sum = 0.0;
        for seed in 1..=runs {
            let mut generator = NoiseSource::Seeded(seed).generator(1, 0)?;
            let budget = CovarianceBudget::new(Rho::new(rho)?);
            let found = regress(method, &sample, target, budget, &mut generator)?;
            let prediction =
                |row: &[f64]| row.iter().zip(&found.coefficients).map(|(x, b)| x * b).sum::<f64>();
            let errors = of(true).map(|(_, row)| (row[target] - prediction(row)).powi(2));
            sum += errors.sum::<f64>() / of(true).map(|(_, row)| row[target].powi(2)).sum::<f64>();
        }
        Ok(sum / runs as f64)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [methods, runs, budgets, files @ ..] = &arguments[..] else {
        eprintln!("usage: covariance_methods METHOD,METHOD,...|all RUNS RHO,RHO,... TABLE.csv ...");
        return Ok(());
    };
    let regression = methods.strip_prefix("regress:");
    let methods: Vec<CovarianceMethod> = match regression.unwrap_or(methods) {
        "all" => CovarianceMethod::ALL.into(),
        names => names.split(',').map(str::parse).collect::<Result<_, _>>()?,
    };
    let names: Vec<&str> = methods.iter().map(|method| method.name()).collect();
    println!("table,rows,columns,rho,{}", names.join(","));
    for file in files {
        let table = Table::read(Path::new(file))?;
        for rho in budgets.split(',') {
            let rho: f64 = rho.parse()?;
            let errors: Vec<String> = methods
                .iter()
                .map(|method| {
                    let runs = runs.parse()?;
                    let error = match regression {
                        Some(_) => table.regression_error(*method, rho, runs),
                        None => table.error(*method, rho, runs),
                    };
                    error.map(|error| format!("{error:.4e}"))
                })
                .collect::<Result<_, _>>()?;
            let rows = table.values.len() / table.columns;
            println!("{},{rows},{},{rho},{}", table.name, table.columns, errors.join(","));
        }
    }
    Ok(())
}
