//! Shows how accurate a month of private delays is.
//!
//! The flights out of New York in January 2013 go through the pipeline of `flights.toml`, as in
//! production, and become one Gaussian density for each airport. Next to every private number the
//! example prints the standard deviation of its noise, and the true value with and without the
//! columns' bounds. **Only an example may show true values**: they are not private.
//!
//! ```sh
//! cargo run --release --example flights_density
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

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

    // From here on only the public log is used. It contains everything needed to read it.
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
    println!("{:34}{:>16}{:>12}{:>10}", "delays in minutes", "private ± noise", "in bounds", "true");
    let bounds = [0, 1].map(|i| (parameters.columns[i].lower, parameters.columns[i].upper));
    for moments in &month {
        let airport = publication.key_name(moments.key);
        let density = publication.to_units(&moments.density()?)?;
        let (clipped, raw) = (truth(airport, bounds)?, truth(airport, [(f64::MIN, f64::MAX); 2])?);
        for (i, (name, private, noise)) in statistics(&density).into_iter().enumerate() {
            println!("{airport:8}{name:26}{private:8.2} ± {noise:5.2}{:12.2}{:10.2}", clipped[i], raw[i]);
        }
    }
    println!(
        "\nThe private numbers differ from those in bounds by noise. Those in bounds differ from the true ones because a few"
    );
    println!("delays are beyond the public bounds: the longest is 21 hours.");
    Ok(())
}

/// Returns names, private values and standard deviations of their noise (to first order where not
/// exact).
fn statistics(density: &Density) -> [(&'static str, f64, f64); 5] {
    let (mean, covariance) = (&density.mean, &density.covariance);
    let deviation = |i: usize| covariance[(i, i)].sqrt();
    let deviation_noise = |i: usize| density.covariance_noise[(i, i)] / (2.0 * deviation(i));
    let scale = deviation(0) * deviation(1);
    [
        ("mean departure delay", mean[0], density.mean_noise[0]),
        ("mean arrival delay", mean[1], density.mean_noise[1]),
        ("sd of departure delay", deviation(0), deviation_noise(0)),
        ("sd of arrival delay", deviation(1), deviation_noise(1)),
        ("correlation of both", covariance[(0, 1)] / scale, density.covariance_noise[(0, 1)] / scale),
    ]
}

/// Returns the same statistics of the file, with delays clipped to bounds. Not private: only for
/// comparison in this example.
fn truth(airport: &str, bounds: [(f64, f64); 2]) -> Result<[f64; 5], Box<dyn Error>> {
    let mut reader = csv::Reader::from_path(Path::new(EXAMPLES).join("data/flights_jan2013.csv"))?;
    let [mut n, mut x, mut y, mut xx, mut xy, mut yy] = [0.0; 6];
    for row in reader.deserialize() {
        let flight: DelayRow = row?;
        if flight.origin == airport {
            let [departure, arrival] = [(flight.dep_delay, bounds[0]), (flight.arr_delay, bounds[1])]
                .map(|(x, (low, high))| x.clamp(low, high));
            n += 1.0;
            x += departure;
            y += arrival;
            xx += departure * departure;
            xy += departure * arrival;
            yy += arrival * arrival;
        }
    }
    let (x, y) = (x / n, y / n);
    let (sd_x, sd_y) = ((xx / n - x * x).sqrt(), (yy / n - y * y).sqrt());
    Ok([x, y, sd_x, sd_y, (xy / n - x * y) / (sd_x * sd_y)])
}

/// The columns of a row that the comparison uses.
#[derive(serde::Deserialize)]
struct DelayRow {
    origin: String,
    dep_delay: f64,
    arr_delay: f64,
}
