//! Computes two views of one release log.
//!
//! A year of hourly weather is released once, by the pipeline of `weather.toml`. Two views of the
//! log then cost no further privacy: a mean that forgets, with weights 0.9ᵃᵍᵉ, and a mean over a
//! window of 7 days. Views that were not planned when the stream ran work as well.
//!
//! The file holds a corrupt reading, a wind of 1048 mph. The public bounds clip it to 60 mph, so it
//! hardly affects the private mean. The windowed mean of the raw file is far off for a week.
//!
//! ```sh
//! cargo run --release --example weather_windows
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;

use hushflow::mechanism::estimate::density::Density;
use hushflow::mechanism::workload::Workload;
use hushflow::pipeline::Pipeline;
use hushflow::publication::{MomentPublication, Publication};
use hushflow::runtime::{RunOptions, run};
use hushflow::state::PublicReader;
use jiff::Timestamp;
use jiff::civil::{Date, date};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
const STATION: &str = "EWR";
const WINDOW: i64 = 7;
/// Indices of columns in the pipeline.
const TEMPERATURE: usize = 0;
const WIND: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let pipeline = Pipeline::load(&Path::new(EXAMPLES).join("weather.toml"))?;
    let directory = tempfile::tempdir()?;
    let state = directory.path().join("state");
    let publication = Publication::of_pipeline(&pipeline, &state, &mut |_| ())?;
    run(&pipeline, &publication, &RunOptions::new(1, &state), |_| ())?;

    let recent = densities(&state, &"exponential:0.9".parse()?)?;
    let week = densities(&state, &format!("window:{WINDOW}").parse()?)?;

    println!("Temperature at {STATION} in °F: mean ± standard deviation of its noise\n");
    println!("{:12}{:>18}{:>18}", "", "0.9^age", "last 7 days");
    for month in 1..=12 {
        let day = date(2013, month, 28);
        println!("{day:12}{}{}", cell(&recent[&day], TEMPERATURE), cell(&week[&day], TEMPERATURE));
    }

    println!("\nWind at {STATION} in mph, around the corrupt reading of 12 February\n");
    println!("{:12}{:>18}{:>18}{:>18}", "", "0.9^age", "last 7 days", "raw, not private");
    let raw = raw_wind()?;
    for day in (9..=20).map(|day| date(2013, 2, day)) {
        let raw = mean_of_window(&raw, day)?;
        println!("{day:12}{}{}{raw:18.2}", cell(&recent[&day], WIND), cell(&week[&day], WIND));
    }
    println!(
        "\nWithin a week of 168 hours, 60 mph instead of about 10 mph moves the mean by 0.3 mph, and 1048 mph by 6."
    );
    Ok(())
}

/// Returns the densities of a station under a workload, day by day, from the public log alone.
fn densities(state: &Path, workload: &Workload) -> Result<BTreeMap<Date, Density>, Box<dyn Error>> {
    let mut log = PublicReader::open(state)?;
    let publication = MomentPublication::from_header(log.header())?;
    let mut view = publication.view(workload);
    let mut densities = BTreeMap::new();
    let mut day = date(2013, 1, 1);
    while let Some(release) = log.next_frame()? {
        for moments in view.push(&release.values)? {
            if publication.key_name(moments.key) == STATION {
                densities.insert(day, publication.to_units(&moments.density()?)?);
            }
        }
        day = day.tomorrow()?;
    }
    Ok(densities)
}

fn cell(density: &Density, column: usize) -> String {
    format!("{:10.2} ± {:5.2}", density.mean[column], density.mean_noise[column])
}

/// Returns the raw wind at the station: day in New York's standard time, and speed. Not private:
/// only for comparison in this example.
fn raw_wind() -> Result<Vec<(Date, f64)>, Box<dyn Error>> {
    let mut reader = csv::Reader::from_path(Path::new(EXAMPLES).join("data/weather_nyc2013.csv"))?;
    let mut wind = Vec::new();
    for row in reader.deserialize() {
        let hour: Hour = row?;
        if let Some(speed) = hour.wind_speed.filter(|_| hour.station == STATION) {
            let time: Timestamp = hour.event_time.parse()?;
            wind.push((jiff::tz::offset(-5).to_datetime(time).date(), speed));
        }
    }
    Ok(wind)
}

/// Returns the mean over the days of the window that ends on `last`.
fn mean_of_window(raw: &[(Date, f64)], last: Date) -> Result<f64, jiff::Error> {
    let first = last.checked_sub(jiff::Span::new().days(WINDOW - 1))?;
    let window: Vec<f64> =
        raw.iter().filter(|(day, _)| (first..=last).contains(day)).map(|&(_, speed)| speed).collect();
    Ok(window.iter().sum::<f64>() / window.len() as f64)
}

/// The columns of a row that the comparison uses.
#[derive(serde::Deserialize)]
struct Hour {
    event_time: String,
    station: String,
    wind_speed: Option<f64>,
}
