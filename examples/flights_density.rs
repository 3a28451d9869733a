//! Compares private statistics of a month of flight delays with the true ones.
//!
//! The flights out of New York in January 2013 go through the pipeline of `flights.toml`, as in
//! production, and become one Gaussian density for each airport. Next to every private number the
//! example prints the standard deviation of its noise, and the true value with and without the
//! columns' bounds. **Only an example may show true values**: they are not private.
//!
//! ```sh
//! cargo run --release --example flights_density
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;
use std::path::Path;

use hushflow::mechanism::estimate::density::Density;
use hushflow::mechanism::view::Moments;
use hushflow::mechanism::workload::Workload;
use hushflow::pipeline::Pipeline;
use hushflow::publication::{MomentPublication, Publication};
use hushflow::runtime::{RunOptions, run};
use hushflow::state::PublicReader;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");

fn main() -> Result<(), Box<dyn Error>> {
    let pipeline = Pipeline::load(&Path::new(EXAMPLES).join("flights.toml"))?;
    let directory = tempfile::tempdir()?;
    let state = directory.path().join("state");
    let publication = Publication::of_pipeline(&pipeline, &state, &mut |_| ())?;
    let summary = run(&pipeline, &publication, &RunOptions::new(1, &state), |_| ())?;

    // The private numbers below come from the public log alone. The log contains everything needed
    // to read it.
    let mut log = PublicReader::open(&state)?;
    let publication = MomentPublication::from_header(log.header())?;
    let mut view = publication.view(&Workload::Prefix);
    let mut month: Vec<Moments> = Vec::new();
    while let Some(release) = log.next_frame()? {
        month = view.push(&release.values)?.collect();
    }

    let parameters = publication.parameters();
    let privacy = parameters.privacy;
    println!("{} days, (ε, δ) = ({}, {})\n", summary.epochs.end - 1, privacy.epsilon, privacy.delta);
    println!("{:34}{:>16}{:>12}{:>10}", "delays in minutes", "private ± noise", "clipped", "true");
    let bounds = [0, 1].map(|i| (parameters.columns[i].lower, parameters.columns[i].upper));
    for moments in &month {
        let airport = publication.key_name(moments.key);
        let density = publication.to_units(&moments.density()?)?;
        let (clipped, raw) = (truth(airport, bounds)?, truth(airport, [(f64::MIN, f64::MAX); 2])?);
        for (i, (name, private, noise)) in statistics(&density).into_iter().enumerate() {
            println!("{airport:8}{name:26}{private:8.2} ± {noise:5.2}{:12.2}{:10.2}", clipped[i], raw[i]);
        }
    }
    println!("\nThe private values differ from the clipped ones by noise. The clipped values differ from");
    println!("the true ones because a few delays lie outside the public bounds: the longest is 22 hours.");
    Ok(())
}

/// Returns the name, the private value and the standard deviation of the noise of each statistic.
/// The noise of standard deviations and of the correlation is to first order, with independent
/// noise in the entries of the covariance: most of the noise of each is its own.
fn statistics(density: &Density) -> [(&'static str, f64, f64); 5] {
    let (mean, covariance) = (&density.mean, &density.covariance);
    let deviation = |i: usize| covariance[(i, i)].sqrt();
    let deviation_noise = |i: usize| density.covariance_noise[(i, i)] / (2.0 * deviation(i));
    let scale = deviation(0) * deviation(1);
    let correlation = covariance[(0, 1)] / scale;
    let relative_noise = |i: usize| density.covariance_noise[(i, i)] / covariance[(i, i)];
    let correlation_noise = (density.covariance_noise[(0, 1)] / scale)
        .hypot(correlation * relative_noise(0).hypot(relative_noise(1)) / 2.0);
    [
        ("mean departure delay", mean[0], density.mean_noise[0]),
        ("mean arrival delay", mean[1], density.mean_noise[1]),
        ("sd of departure delay", deviation(0), deviation_noise(0)),
        ("sd of arrival delay", deviation(1), deviation_noise(1)),
        ("correlation of both", correlation, correlation_noise),
    ]
}

/// Returns the true statistics of one airport, with delays clipped to `bounds`. They are not
/// private and serve only as a comparison.
fn truth(airport: &str, bounds: [(f64, f64); 2]) -> Result<[f64; 5], Box<dyn Error>> {
    let mut reader = csv::Reader::from_path(Path::new(EXAMPLES).join("data/flights_jan2013.csv"))?;
    let [mut n, mut sum_x, mut sum_y, mut sum_xx, mut sum_xy, mut sum_yy] = [0.0; 6];
    for row in reader.deserialize() {
        let flight: DelayRow = row?;
        if flight.origin == airport {
            let [departure, arrival] = [(flight.dep_delay, bounds[0]), (flight.arr_delay, bounds[1])]
                .map(|(delay, (low, high))| delay.clamp(low, high));
            n += 1.0;
            sum_x += departure;
            sum_y += arrival;
            sum_xx += departure * departure;
            sum_xy += departure * arrival;
            sum_yy += arrival * arrival;
        }
    }
    let (mean_x, mean_y) = (sum_x / n, sum_y / n);
    let (sd_x, sd_y) = ((sum_xx / n - mean_x * mean_x).sqrt(), (sum_yy / n - mean_y * mean_y).sqrt());
    Ok([mean_x, mean_y, sd_x, sd_y, (sum_xy / n - mean_x * mean_y) / (sd_x * sd_y)])
}

/// The columns of a row that the comparison uses.
#[derive(serde::Deserialize)]
struct DelayRow {
    origin: String,
    dep_delay: f64,
    arr_delay: f64,
}
