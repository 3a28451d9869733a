//! Prints how far each strategy is from the optimum, and whether the strategies reproduce published
//! tables.
//!
//! The first table holds, for every strategy that a comparison includes, how far its total squared
//! error is above a proven lower bound, for several workloads, horizons and participations; and its
//! bytes of state and the nanoseconds of encoding a step, both per coordinate. `docs/strategies.md`
//! contains it.
//!
//! Then the example recomputes Tables 1 and 6 of "Multi-Epoch Matrix Factorization Mechanisms"
//! (Choquette-Choo et al., 2023). Table 1 lists the total squared error of prefix sums over 2000
//! steps, for every known mechanism, when each person takes part 20 times, 100 steps apart. Table 6
//! lists the root of the total squared error of a tiny problem under three sets of constraints. The
//! example fails if a row differs in a printed digit. The paper's values for Fourier encoders use
//! its sensitivity bound, Theorem 2.1. That bound has its own column; the exact sensitivity may be
//! smaller.
//!
//! ```sh
//! cargo run --release --example strategy_tables              # minutes once; optima are cached
//! cargo run --release --example strategy_tables -- --quick   # leaves out long searches
//! cargo run --release --example strategy_tables -- --losses  # only the first table
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use hushflow::mechanism::error::ExpectedError;
use hushflow::mechanism::optimize::corners::{Corners, optimum};
use hushflow::mechanism::optimize::{QuadraticForm, loss_bound};
use hushflow::mechanism::participation::Participation;
use hushflow::mechanism::sensitivity::{SensitivityClaim, participation_sensitivity};
use hushflow::mechanism::strategy::{
    Comparison, Fit, Matrix, OmissionReason, Purpose, Strategy, StrategyName, compare,
};
use hushflow::mechanism::workload::Workload;
use hushflow::strategies::Candidate;
use nalgebra::SymmetricEigen;

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Length of the stream in Table 1.
const STEPS: u64 = 2000;

/// Participations in Table 1: k times, b steps apart.
const PARTICIPATION: &str = "20x100";

/// Vectors are released, not scalars.
const DIMENSION: usize = 2;

/// Longest horizon whose strategy is optimised in seconds.
const QUICK: u64 = 1000;

/// Label in the paper, our strategy, number of stamps, printed loss.
type PublishedRow = (&'static str, &'static str, u64, &'static str);

const TABLE_1: [PublishedRow; 30] = [
    ("(Online) Honaker(n=2000)", "honaker", 1, "5.8e6"),
    ("(Online) Honaker(n=1000)×2", "honaker", 2, "3.3e6"),
    ("(Online) Honaker(n=400)×5", "honaker", 5, "2.1e6"),
    ("(Online) Honaker(n=200)×10", "honaker", 10, "2.0e6"),
    ("(Online) Honaker(n=100)×20", "honaker", 20, "2.1e6"),
    ("Optimal Decoder Honaker(n=2000)", "tree-optimal-decoder", 1, "2.4e6"),
    ("Optimal Decoder Honaker(n=1000)×2", "tree-optimal-decoder", 2, "1.6e6"),
    ("Optimal Decoder Honaker(n=400)×5", "tree-optimal-decoder", 5, "1.2e6"),
    ("Optimal Decoder Honaker(n=200)×10", "tree-optimal-decoder", 10, "1.4e6"),
    ("Optimal Decoder Honaker(n=100)×20", "tree-optimal-decoder", 20, "1.8e6"),
    ("MF(k=20,n=2000)", "optimal", 1, "6.5e5"),
    ("MF(k=10,n=1000)×2", "optimal", 2, "8.8e5"),
    ("MF(k=5,n=500)×4", "optimal", 4, "1.2e6"),
    ("MF(k=1,n=100)×20", "optimal", 20, "2.5e6"),
    ("MF(k=1,n=2000)", "coa", 1, "1.6e6"),
    ("MF(k=1,n=1000)×2", "coa", 2, "1.37e6"),
    ("MF(k=1,n=500)×4", "coa", 4, "1.4e6"),
    ("MF(k=1,n=400)×5", "coa", 5, "1.5e6"),
    ("MF(k=1,n=200)×10", "coa", 10, "1.8e6"),
    ("MF(k=1,n=100)×20", "coa", 20, "2.5e6"),
    ("FFT(n=2000)", "fft", 1, "2.3e6"),
    ("FFT(n=1000)×2", "fft", 2, "1.8e6"),
    ("FFT(n=400)×5", "fft", 5, "1.6e6"),
    ("FFT(n=200)×10", "fft", 10, "1.9e6"),
    ("FFT(n=100)×20", "fft", 20, "2.5e6"),
    ("FFT Optimal Decoder(n=2000)", "fft-optimal-decoder", 1, "2.2e6"),
    ("FFT Optimal Decoder(n=1000)×2", "fft-optimal-decoder", 2, "1.5e6"),
    ("FFT Optimal Decoder(n=400)×5", "fft-optimal-decoder", 5, "1.1e6"),
    ("FFT Optimal Decoder(n=200)×10", "fft-optimal-decoder", 10, "1.2e6"),
    ("FFT Optimal Decoder(n=100)×20", "fft-optimal-decoder", 20, "1.7e6"),
];

/// Workload, equation number of the constraints, the constraints, printed root of the loss.
const TABLE_6: [(&str, &str, Corners, &str); 6] = [
    ("prefix", "(34)", Corners::Signed, "6.461"),
    ("prefix", "(36)", Corners::NonNegativeInPattern, "6.461"),
    ("prefix", "(35)", Corners::NonNegative, "6.461"),
    ("momentum:0.95", "(34)", Corners::Signed, "16.114"),
    ("momentum:0.95", "(36)", Corners::NonNegativeInPattern, "16.131"),
    ("momentum:0.95", "(35)", Corners::NonNegative, "16.134"),
];

/// Workload, horizon and participation of the columns of the first table.
const PURPOSES: [(&str, u64, &str); 10] = [
    ("prefix", 512, "1"),
    ("prefix", 100_000, "1"),
    ("average", 512, "1"),
    ("exponential:0.99", 512, "1"),
    ("momentum:0.9", 512, "1"),
    ("window:10", 512, "1"),
    ("window-mean:10", 512, "1"),
    ("prefix", 512, "4x128"),
    ("prefix", 512, "4x128+"),
    ("prefix", STEPS, PARTICIPATION),
];

/// Strategies that are computed even where they take minutes.
const LONG: [&str; 3] = ["optimal", "variable-blt:4", "comb-blt:3"];

/// Number of coordinates, and longest horizon, for which encoding is measured.
const COORDINATES: usize = 256;
const MEASURED: u64 = 2048;

/// Number of measurements of a strategy.
const PASSES: u32 = 5;

fn main() -> Fallible<()> {
    let (quick, tables) = match std::env::args().nth(1).as_deref() {
        None => (false, true),
        Some("--quick") => (true, true),
        Some("--losses") => (false, false),
        Some(other) => {
            return Err(format!("unknown option `{other}`: expected --quick, --losses or nothing").into());
        }
    };
    losses(quick)?;
    if !tables {
        return Ok(());
    }
    let agree = [table_1(quick)?, table_6()?];
    if agree != [true; 2] {
        return Err("a row differs from the paper".into());
    }
    println!("\nAll rows agree with the paper in every printed digit.");
    Ok(())
}

/// A row of the first table.
struct LossRow {
    strategy: String,
    /// Loss over its lower bound for every purpose; `None` where the strategy is left out.
    ratios: [Option<f64>; PURPOSES.len()],
    bytes: Option<usize>,
    nanoseconds: Option<f64>,
}

/// Prints the table of all strategies, in Markdown: the best for the first purpose come first.
fn losses(quick: bool) -> Fallible<()> {
    let mut rows: Vec<LossRow> = Vec::new();
    for (column, (workload, horizon, participation)) in PURPOSES.into_iter().enumerate() {
        let purpose =
            Purpose { participation: participation.parse()?, ..Purpose::new(workload.parse()?, horizon) };
        let Comparison { strategies: mut names, omissions } = compare(&purpose, false);
        let long = |reason: &OmissionReason| matches!(reason, OmissionReason::Time { .. });
        for left in omissions.iter().filter(|left| !quick && long(&left.reason)) {
            if LONG.contains(&left.strategy.as_str()) {
                names.push(left.strategy.parse()?);
            }
        }
        let mut found = Vec::new();
        let mut bound: Option<f64> = None;
        for name in names {
            let candidate = match Candidate::new(&name, &purpose, &mut |_| ()) {
                Err(error) if error.omission().is_some() => continue,
                candidate => candidate?,
            };
            let loss = candidate.error_under(&purpose)?.loss;
            bound = bound.into_iter().chain(candidate.loss_lower_bound).reduce(f64::max);
            found.push((name.to_string(), loss, candidate.strategy));
        }
        let bound = match bound {
            Some(bound) => bound,
            None => loss_bound(&purpose.workload, horizon, purpose.participation)?,
        };
        for (strategy, loss, running) in found {
            let index = rows.iter().position(|row| row.strategy == strategy).unwrap_or_else(|| {
                let history = horizon as usize * size_of::<i128>();
                let bytes = running.as_ref().map(|running| running.encoder_bytes().min(history));
                let nanoseconds =
                    running.as_ref().map(|running| encoding_nanoseconds(running.as_ref(), horizon));
                rows.push(LossRow { strategy, ratios: [None; PURPOSES.len()], bytes, nanoseconds });
                rows.len() - 1
            });
            rows[index].ratios[column] = Some(loss / bound);
        }
    }
    let order = |row: &LossRow| {
        let first = row.ratios.iter().position(Option::is_some).unwrap_or(PURPOSES.len());
        (first, row.ratios.get(first).copied().flatten().unwrap_or(f64::INFINITY))
    };
    rows.sort_by(|a, b| {
        let ((a, ratio_a), (b, ratio_b)) = (order(a), order(b));
        a.cmp(&b).then(ratio_a.total_cmp(&ratio_b))
    });
    let titles = PURPOSES.map(|(workload, horizon, participation)| match participation {
        "1" => format!("`{workload}` {horizon}"),
        _ => format!("`{workload}` {horizon}, {participation}"),
    });
    println!("| strategy | {} | bytes | ns |", titles.join(" | "));
    println!("|---|{}---:|---:|", "---:|".repeat(PURPOSES.len()));
    for LossRow { strategy, ratios, bytes, nanoseconds } in &rows {
        let ratios = ratios.map(|ratio| ratio.map_or("-".into(), as_ratio));
        let bytes = bytes.map_or("-".into(), |bytes| bytes.to_string());
        let nanoseconds = nanoseconds.map_or("-".into(), |time| format!("{time:.1}"));
        println!("| `{strategy}` | {} | {bytes} | {nanoseconds} |", ratios.join(" | "));
    }
    println!();
    Ok(())
}

/// Formats a ratio with four decimals below 10, one below 100, and none above.
fn as_ratio(ratio: f64) -> String {
    match ratio {
        _ if ratio < 10.0 => format!("{ratio:.4}"),
        _ if ratio < 100.0 => format!("{ratio:.1}"),
        _ => format!("{ratio:.0}"),
    }
}

/// Returns the mean time of encoding a step, per coordinate: the least of a few passes, because
/// other work only slows a pass down.
fn encoding_nanoseconds(strategy: &dyn Strategy, horizon: u64) -> f64 {
    (0..PASSES).map(|_| nanoseconds_of_pass(strategy, horizon)).fold(f64::INFINITY, f64::min)
}

fn nanoseconds_of_pass(strategy: &dyn Strategy, horizon: u64) -> f64 {
    let steps = horizon.min(MEASURED);
    let mut encoder = strategy.encoder(COORDINATES);
    let (input, mut output) = (vec![1_i128 << 20; COORDINATES], vec![0_i128; COORDINATES]);
    let begin = Instant::now();
    for _ in 0..steps {
        if encoder.encode(black_box(&input), &mut output).is_err() {
            return f64::NAN;
        }
        black_box(&output);
    }
    begin.elapsed().as_nanos() as f64 / (steps as f64 * COORDINATES as f64)
}

/// Prints Table 1. Returns whether all rows agree with the paper.
fn table_1(quick: bool) -> Fallible<bool> {
    println!("Table 1: prefix, {STEPS} steps, participation {PARTICIPATION}\n");
    println!("{:35}{:>7}{:>12}{:>14}  sensitivity", "mechanism", "paper", "loss", "by Thm 2.1");
    let mut agree = true;
    for (label, name, stamps, printed) in TABLE_1 {
        let searched = !matches!(name.parse::<StrategyName>()?.fit(), Fit::None);
        if quick && searched && STEPS / stamps > QUICK {
            println!("{label:35}{printed:>7}  left out");
            continue;
        }
        let found = loss(name, stamps)?;
        let compared = found.spectral.unwrap_or(found.loss);
        let agrees = as_printed(compared, printed) == printed && found.loss <= compared * (1.0 + 1e-9);
        let spectral = found.spectral.map_or("-".into(), |loss| format!("{loss:.1}"));
        let mark = if agrees { "" } else { "  DIFFERS" };
        println!(
            "{label:35}{printed:>7}{:>12.1}{spectral:>14}  {}{mark}",
            found.loss, found.sensitivity.kind
        );
        agree &= agrees;
    }
    Ok(agree)
}

/// A cell of Table 1.
struct TableCell {
    /// Total squared error with our sensitivity.
    loss: f64,
    sensitivity: SensitivityClaim,
    /// With the sensitivity of Theorem 2.1, for Fourier encoders, as in the paper.
    spectral: Option<f64>,
}

fn loss(name: &str, stamps: u64) -> Fallible<TableCell> {
    let participation: Participation = PARTICIPATION.parse()?;
    let purpose = Purpose { participation, stamps, ..Purpose::new(Workload::Prefix, STEPS) };
    let candidate = Candidate::new(&name.parse()?, &purpose, &mut |_| ())?;
    let matrix = candidate.factorization.matrix(STEPS)?;
    let sensitivity = participation_sensitivity(&matrix, participation, DIMENSION)?;
    let rows = candidate.factorization.decoder_row_samples(&purpose.workload, STEPS);
    let error = ExpectedError::of_samples(sensitivity.value(), rows);
    let spectral = ["fft", "fft-optimal-decoder"]
        .contains(&name)
        .then(|| spectral_bound(&matrix, participation) * error.frobenius.powi(2));
    Ok(TableCell { loss: error.loss, sensitivity, spectral })
}

/// Theorem 2.1: `k · max_π ‖C_π‖₂²`.
fn spectral_bound(matrix: &Matrix, participation: Participation) -> f64 {
    let schedule = participation.on(matrix.columns());
    let norm_squared = |start| SymmetricEigen::new(matrix.gram(&schedule.pattern(start))).eigenvalues.max();
    schedule.count() as f64 * schedule.starts().map(norm_squared).fold(0.0, f64::max)
}

/// Prints Table 6. Returns whether all rows agree with the paper.
fn table_6() -> Fallible<bool> {
    println!("\nTable 6: 6 steps, participation 3x2, root of the loss\n");
    println!("{:15}{:>6}{:>9}{:>14}{:>10}", "workload", "Eq.", "paper", "root of loss", "gap");
    let mut agree = true;
    for (workload, equation, corners, printed) in TABLE_6 {
        let form = QuadraticForm::from_workload(&workload.parse()?, 6)?;
        let found = optimum(&form, 3, 2, corners, 1e-9)?;
        let (root, gap) = (found.objective.sqrt(), found.objective / found.lower_bound - 1.0);
        let agrees = format!("{root:.3}") == printed;
        let mark = if agrees { "" } else { "  DIFFERS" };
        println!("{workload:15}{equation:>6}{printed:>9}{root:>14.6}{gap:>10.1e}{mark}");
        agree &= agrees;
    }
    Ok(agree)
}

/// Formats a value with as many digits as the paper prints.
fn as_printed(value: f64, printed: &str) -> String {
    let digits = printed.split('e').next().map_or(0, |mantissa| mantissa.len() - 2);
    format!("{value:.digits$e}")
}
