//! Publishes private moments from an application's own timely dataflow.
//!
//! Two workers each receive half of the flights out of New York in January 2013. Their dataflow
//! could compute anything. Here it publishes the mean delay of each airport, day by day. Run it
//! twice: the second run finds all days in the public log. `hushflow tail` reads that log, too.
//!
//! ```sh
//! cargo run --release --example embed_in_timely
//! ```
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;

use hushflow::prelude::*;
use hushflow::time::parse_time;
use timely::dataflow::operators::{Inspect, vec::Map};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
const AIRPORTS: [&str; 3] = ["EWR", "JFK", "LGA"];

/// The application's own record.
#[derive(Clone, serde::Deserialize)]
struct Flight {
    event_time: String,
    recorded_at: String,
    origin: String,
    dep_delay: f64,
}

impl Flight {
    fn record(self, epoch: u64) -> Record {
        let airport = AIRPORTS.iter().position(|airport| *airport == self.origin);
        Record::new(epoch, airport.map_or(u32::MAX, |airport| airport as u32), [self.dep_delay])
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // Bounds, keys and epochs are public, and not taken from the data.
    let pipeline = Pipeline::builder("embedded")
        .column("dep_delay", -60.0, 240.0)
        .keys("origin", AIRPORTS)
        .epochs("2013-01-01T05:00:00Z", "1d", 32)
        .set("epochs", "allowed_lateness", "6h")
        .guarantee(1.0, 1e-6)
        .build()?;
    let flights = csv::Reader::from_path(format!("{EXAMPLES}/data/flights_jan2013.csv"))?
        .deserialize()
        .collect::<Result<Vec<Flight>, _>>()?;
    let publisher = Publisher::open(&pipeline, format!("{EXAMPLES}/embedded-state"))?;
    let last = publisher.run(2, move |worker, publisher| {
        let mut input = worker.dataflow(|scope| {
            let (input, EpochStream { items, ends }) = publisher.input::<Flight>(scope);
            let view = publisher.view(&Workload::Prefix);
            let printer = publisher.clone();
            items
                .map(|(epoch, flight)| flight.record(epoch))
                // Everything before this is private, and its types can't be printed. Everything
                // after it is public and on disk.
                .publish(publisher, ends)
                .view(view, publisher.fault())
                .density()
                .inspect(move |estimate| print(&printer, estimate));
            input
        });
        for flight in flights.iter().skip(worker.index()).step_by(worker.peers()) {
            let times = [&flight.recorded_at, &flight.event_time].map(|text| parse_time(text));
            let [Some(recorded), Some(departure)] = times else { continue };
            // The times at which flights are recorded are public: they close the days.
            input.advance(recorded);
            input.send(departure, flight.clone());
            worker.step();
        }
        input.end();
    })?;
    println!("{last} days are in examples/embedded-state");
    Ok(())
}

/// Prints one line a week for each airport.
fn print(publisher: &Publisher, DensityEstimate { moments, density }: &DensityEstimate) {
    let publication = publisher.publication();
    let in_units = density.as_ref().map(|density| publication.to_units(density));
    if let (Ok(Ok(density)), true) = (in_units, moments.epoch.is_multiple_of(7)) {
        let (airport, mean) = (publication.key_name(moments.key), density.mean[0]);
        // ± is the half-width of a 95 % interval.
        let reach = 1.96 * density.mean_noise[0];
        println!("day {:2}  {airport}  mean delay so far {mean:6.2} ± {reach:.2} min", moments.epoch);
    }
}
