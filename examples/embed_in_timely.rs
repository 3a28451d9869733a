//! How do I publish private moments from my own timely dataflow?
//!
//! Two workers each see every second flight out of New York in January 2013, as `(airport,
//! departure, delay)`. Their dataflow could do anything with these. Here it publishes the mean
//! delay of each airport, day by day. The comments list an embedder's decisions, on which the
//! guarantee depends.
//!
//! ```sh
//! cargo run --release --example embed_in_timely
//! ```
#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use hushflow::operators::timely;
use hushflow::pipeline::{self, MissingPolicy, PublicParameters, RowPolicies, RowPolicy};
use hushflow::prelude::*;
use hushflow::time::{parse_duration, parse_time};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::operator::Operator;
use timely::dataflow::operators::vec::ToStream;
use timely::dataflow::operators::{Input, Inspect};
use timely::dataflow::{InputHandle, StreamVec};
use timely::worker::Worker;

const FLIGHTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/flights_jan2013.csv");
const AIRPORTS: [&str; 3] = ["EWR", "JFK", "LGA"];
const WORKERS: usize = 2;
const NAP: Duration = Duration::from_millis(50);

/// The application's own record, with the public time at which it became known. That time closes
/// epochs.
#[derive(Clone)]
struct Flight {
    airport: u32,
    departure: i64,
    delay: f64,
    recorded: i64,
}

fn main() -> Result<(), Box<dyn Error>> {
    // Decision 1: what is promised, to whom, over which horizon. The publication derives a clipper,
    // a strategy and the least noise that keeps the promise. All workers must use the same one.
    let publication = MomentPublication::calibrate(parameters()?, true)?;
    // Decision 2: which noise, and where to start. One value holds everything that the operators
    // need, so they always agree. The noise is the operating system's. Seeded noise is for tests,
    // protects nobody, and is refused here. After a restart, `resume` takes the epoch after the
    // last committed one, which must never be drawn again, and the encoders' states from the log's
    // checkpoint.
    let measurement = publication.measurement(NoiseSource::System)?.build()?;
    let flights = read()?;
    let fault = Fault::new();
    let (log, epochs) = channel();
    let run = {
        let (publication, fault) = (publication.clone(), fault.clone());
        move |worker: &mut Worker| work(worker, (&publication, &measurement), &flights, &log, &fault)
    };
    timely::execute(timely::Config::process(WORKERS), run)?
        .join()
        .into_iter()
        .collect::<Result<Vec<()>, _>>()?;
    if let Some(reason) = fault.reason() {
        return Err(reason.into());
    }
    println!("{} of {} epochs are in the log", epochs.try_iter().count(), publication.horizon());
    Ok(())
}

fn parameters() -> Result<PublicParameters, Box<dyn Error>> {
    let schedule = TimeSchedule {
        start: parse_time("2013-01-01T05:00:00Z").ok_or("a time")?,
        length: parse_duration("1d").ok_or("a duration")?,
        lateness: parse_duration("6h").ok_or("a duration")?,
        horizon: 32,
        late: LatePolicy::Fold,
        clock: ClockSource::Arrival,
        calendar: None,
    };
    Ok(PublicParameters {
        name: "embedded".into(),
        rows: RowPolicies { missing: MissingPolicy::Skip, malformed: RowPolicy::Skip },
        columns: vec![pipeline::Column {
            name: "dep_delay".into(),
            lower: -60.0,
            upper: 240.0,
            bounds: BTreeMap::new(),
        }],
        key: Some(pipeline::KeyColumn {
            column: "origin".into(),
            values: AIRPORTS.map(String::from).to_vec(),
        }),
        entity: None,
        estimator: None,
        id: None,
        sources: Vec::new(),
        epochs: pipeline::Epochs { schedule: Schedule::ByTime(schedule), time: None, arrival: None },
        privacy: pipeline::Privacy {
            epsilon: 1.0,
            delta: 1e-6,
            neighbours: Neighbours::ReplaceOne,
            clip_norm: 1.0,
            second_moment_weight: None,
            second_moments: SecondMoment::Full,
        },
        release: pipeline::Release {
            strategy: "square-root".parse()?,
            workload: Workload::Prefix,
            memory_limit: None,
            method: Method::Jme,
        },
    })
}

/// Builds and runs the dataflow on one worker.
fn work(
    worker: &mut Worker,
    (publication, measurement): (&MomentPublication, &Measurement),
    flights: &[Flight],
    log: &Sender<ReleasedEpoch>,
    fault: &Fault,
) {
    let (mut input, mut ends) = (InputHandle::new(), InputHandle::new());
    build(worker, &mut input, &mut ends, (publication, measurement), log, fault);

    // Decision 3: what moves the clock. It must be public: here the times at which flights are
    // recorded. A flight joins the epoch given by its departure and the clock. The input stays at
    // the oldest epoch that may still get flights.
    let schedule = &publication.parameters().epochs.schedule;
    let mut clock = Clock::START;
    input.advance_to(1);
    let mine = flights.iter().skip(worker.index()).step_by(worker.peers());
    for flight in mine.take_while(|_| !fault.is_raised()) {
        clock.advance(flight.recorded);
        if schedule.oldest_open(clock) > *input.time() {
            input.advance_to(schedule.oldest_open(clock));
            worker.step();
        }
        if let Some(epoch) = schedule.assign(flight.departure, clock).epoch() {
            input.send((epoch, flight.clone()));
        }
    }

    // Decision 4: where the stream ends. A closed input could also mean a lost one, which is a
    // fault. So the last epoch to release is announced explicitly. It follows from the clock, not
    // from the data.
    ends.send(schedule.last_at_end(clock));
    ends.close();
    input.close();

    // Decision 5: what happens on a fault. An operator that can't continue raises it on its worker,
    // and all workers stop. Parking leaves the processor to others; the nap bounds how long a fault
    // goes unnoticed.
    while !fault.is_raised() && worker.step_or_park(Some(NAP)) {}
    // After a fault, timely must not wait for dataflows that never finish.
    worker.installed_dataflows().into_iter().for_each(|dataflow| worker.drop_dataflow(dataflow));
}

fn build(
    worker: &mut Worker,
    input: &mut InputHandle<u64, CapacityContainerBuilder<Vec<(u64, Flight)>>>,
    ends: &mut InputHandle<u64, CapacityContainerBuilder<Vec<u64>>>,
    (publication, measurement): (&MomentPublication, &Measurement),
    log: &Sender<ReleasedEpoch>,
    fault: &Fault,
) {
    // Decision 6: what durable means. A real log writes a whole epoch to disk and syncs before it
    // returns. Only then is the epoch shown, and after a crash it is read back. This one keeps
    // public data in memory and loses it with the process.
    let log = log.clone();
    let commit = move |epochs: &[EpochCommit<u64>]| {
        epochs.iter().try_for_each(|epoch| Ok(log.send(epoch.released.clone())?))
    };
    // Decision 7: who commits. The operator commits on worker 0, which alone needs a log.
    let log = (worker.index() == 0).then(|| Box::new(commit) as Box<dyn CommitLog<u64>>);
    let (viewed, printed) = (publication.clone(), publication.clone());
    worker.dataflow(|scope| {
        // A restart would send the position to resume from here, at the time of its epoch. This
        // program starts over.
        let marks = Vec::new().to_stream(scope);
        records(scope.input_from(input))
            .epochs()
            .clip(measurement, fault.clone())
            .accumulate(measurement, fault.clone())
            .release(scope.input_from(ends), measurement, fault.clone())
            .commit(marks, measurement, log, fault.clone())
            // Everything above is private, and its types can't be printed. Everything below is
            // public.
            .view(move || viewed.view(&Workload::Prefix), fault.clone())
            .density()
            .inspect(move |estimate| print(&printed, estimate));
    });
}

/// Converts the application's records to batches.
fn records<'scope>(flights: StreamVec<'scope, u64, (u64, Flight)>) -> StreamVec<'scope, u64, Records> {
    flights.unary(Pipeline, "Records", |_capability, _info| {
        |input, output| {
            input.for_each_time(|time, batches| {
                let mut session = output.session(&time);
                for batch in batches {
                    let mut records = Records::default();
                    for (epoch, flight) in batch.drain(..) {
                        records.keys.push(flight.airport);
                        records.epochs.push(epoch);
                        records.values.push(flight.delay);
                    }
                    session.give(records);
                }
            });
        }
    })
}

/// Prints one line a week for each airport.
fn print(publication: &MomentPublication, estimate: &DensityEstimate) {
    let DensityEstimate { moments, density } = estimate;
    let in_units = density.as_ref().map(|density| publication.to_units(density));
    if let (Ok(Ok(density)), true) = (in_units, moments.epoch.is_multiple_of(7)) {
        let airport = publication.key_name(moments.key);
        let (mean, noise) = (density.mean[0], density.mean_noise[0]);
        println!(
            "day {:2}  {airport}  mean departure delay so far {mean:6.2} ± {noise:.2} min",
            moments.epoch
        );
    }
}

fn read() -> Result<Vec<Flight>, Box<dyn Error>> {
    let mut flights = Vec::new();
    for row in csv::Reader::from_path(FLIGHTS)?.deserialize() {
        let row: FlightRow = row?;
        let airport =
            AIRPORTS.iter().position(|airport| *airport == row.origin).ok_or("an unknown airport")?;
        flights.push(Flight {
            airport: airport as u32,
            departure: parse_time(&row.event_time).ok_or("no time of departure")?,
            delay: row.dep_delay,
            recorded: parse_time(&row.recorded_at).ok_or("no time of recording")?,
        });
    }
    Ok(flights)
}

/// The columns of a row that this program uses.
#[derive(serde::Deserialize)]
struct FlightRow {
    event_time: String,
    recorded_at: String,
    origin: String,
    dep_delay: f64,
}
