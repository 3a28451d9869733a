//! Benchmarks PACE-GGM with ρ = 10 on data shaped like the slowest in the paper: 102 columns of
//! 1,994 records with twenty factors (47.8 s in the paper), and 187 columns of 9,144
//! records with three (3,117 s in the paper). Figures are in `docs/covariance.md`.

use divan::{Bencher, black_box};
use hushflow_estimators::covariance::{CovarianceBudget, CovarianceMethod, CovarianceSample};
use hushflow_mechanism::accounting::Rho;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::sensitivity::Neighbours;

/// Records, columns and factors.
#[derive(Clone, Copy, Debug)]
struct TableShape {
    records: usize,
    columns: usize,
    factors: usize,
}

const SHAPES: [TableShape; 2] = [
    TableShape { records: 1994, columns: 102, factors: 20 },
    TableShape { records: 9144, columns: 187, factors: 3 },
];

/// Factor models with values between −1 and 1: the loadings of a factor are 0.7 times as large as
/// those of the factor before, and each column adds values of its own from −0.1 to 0.1.
fn records(TableShape { records, columns, factors }: TableShape) -> Vec<f64> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    let loadings: Vec<f64> =
        (0..columns * factors).map(|position| uniform() * 0.7f64.powi((position % factors) as i32)).collect();
    let mut record = || {
        let scores: Vec<f64> = (0..factors).map(|_| uniform()).collect();
        let own: Vec<f64> = (0..columns).map(|_| 0.1 * uniform()).collect();
        let column = |j: usize| {
            let factors = scores.iter().zip(&loadings[j * factors..]).map(|(score, loading)| score * loading);
            (factors.sum::<f64>() + own[j]).clamp(-1.0, 1.0)
        };
        (0..columns).map(column).collect::<Vec<f64>>()
    };
    (0..records).flat_map(|_| record()).collect()
}

#[divan::bench(args = SHAPES, sample_count = 1, sample_size = 1)]
fn pace(bencher: Bencher<'_, '_>, shape: TableShape) {
    let records = records(shape);
    let bounds = vec![(-1.0, 1.0); shape.columns];
    bencher.bench_local(|| {
        let sample =
            CovarianceSample::new(&bounds, &records, Neighbours::ReplaceOneInPlace).expect("a sample");
        let mut generator = NoiseSource::Seeded(1).generator(1, 0).expect("a seed needs no entropy");
        let budget = CovarianceBudget::new(Rho::new(10.0).expect("a rho"));
        let found =
            CovarianceMethod::Pace.estimate(&sample, None, budget, &mut generator).expect("an estimate");
        black_box(found.covariance.norm())
    });
}

fn main() {
    divan::main();
}
