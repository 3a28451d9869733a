//! `adaptive_covariance`: a private covariance of the records of each key and epoch, by any method
//! of [`covariance`](hushflow_estimators::covariance).
//!
//! Each record is in one window, so the windows compose in parallel: all releases together cost as
//! much as one. The neighbour relation must keep a record in its window, as replace-one-in-place
//! and zero-out do.

use crate::windows::Windows;
use crate::{Fault, Records};
use hushflow_estimators::covariance::{Budget, CovarianceError, Estimate, Method, Sample};
use hushflow_mechanism::accounting::Rho;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::sensitivity::Neighbours;
use timely::dataflow::StreamVec;

/// Parameters of the covariance of every window. All are public.
#[derive(Clone, Debug)]
pub struct CovarianceSetup {
    /// The method.
    pub method: Method,
    /// Share of the budget for a mean to centre by.
    pub centre: Option<f64>,
    /// ρ of zCDP, for all windows together.
    pub rho: Rho,
    /// The neighbour relation of the guarantee.
    pub neighbours: Neighbours,
    /// Bounds of each column.
    pub bounds: Vec<(f64, f64)>,
    /// Number of keys. Keys are numbered from 0.
    pub keys: u32,
    /// The last epoch.
    pub horizon: u64,
    /// Source of noise.
    pub source: NoiseSource,
}

/// The covariance of a key's records in an epoch, or the reason why there is none. Both are public.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowCovariance {
    /// The epoch.
    pub epoch: u64,
    /// The key.
    pub key: u32,
    /// The estimate.
    pub estimate: Result<Estimate, CovarianceError>,
}

impl CovarianceSetup {
    /// Returns the covariance of a window with these records, row by row. A command on the same
    /// rows gives the same result.
    ///
    /// # Errors
    /// A reason if the operating system has no entropy. Then nothing may be released.
    pub fn window(&self, epoch: u64, key: u32, records: &[f64]) -> Result<WindowCovariance, String> {
        let mut generator =
            self.source.generator(epoch, u64::from(key)).map_err(|error| error.to_string())?;
        let estimate = Sample::new(&self.bounds, records, self.neighbours).and_then(|sample| {
            self.method.estimate(&sample, self.centre, Budget::new(self.rho), &mut generator)
        });
        Ok(WindowCovariance { epoch, key, estimate })
    }
}

/// Estimates covariances of windows.
pub trait AdaptiveCovariance<'scope> {
    /// Returns a covariance for every key and every epoch from 1 to the horizon when the epoch
    /// closes, even for windows without records. Keys with the same remainder share a worker and
    /// come in ascending order within an epoch.
    ///
    /// Records of an undeclared key, or with another number of columns, raise the fault.
    ///
    /// ```
    /// use hushflow_mechanism::accounting::Rho;
    /// use hushflow_estimators::covariance::Method;
    /// use hushflow_mechanism::noise::NoiseSource;
    /// use hushflow_mechanism::sensitivity::Neighbours;
    /// use hushflow_operators::{AdaptiveCovariance, CovarianceSetup, Epochs, Fault, Records};
    /// use timely::dataflow::operators::{Inspect, vec::ToStream};
    ///
    /// let setup = CovarianceSetup {
    ///     method: Method::Pace,
    ///     centre: None,
    ///     rho: Rho::new(1.0)?,
    ///     neighbours: Neighbours::ReplaceOneInPlace,
    ///     bounds: vec![(-1.0, 1.0); 2],
    ///     keys: 1,
    ///     horizon: 2,
    ///     source: NoiseSource::System,
    /// };
    /// let values = vec![0.5, 0.5, -0.5, -0.5, 0.1, 0.2];
    /// let batch = Records { keys: vec![0; 3], epochs: vec![1, 1, 2], values, ..Records::default() };
    /// timely::example(move |scope| {
    ///     let records = vec![batch].to_stream(scope).container::<Vec<_>>().epochs();
    ///     records.adaptive_covariance(setup, Fault::new()).inspect(|window| match window.epoch {
    ///         1 => assert!(window.estimate.is_ok()),
    ///         _ => assert!(window.estimate.is_err(), "one record has no covariance"),
    ///     });
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn adaptive_covariance(
        self,
        setup: CovarianceSetup,
        fault: Fault,
    ) -> StreamVec<'scope, u64, WindowCovariance>;
}

impl<'scope> AdaptiveCovariance<'scope> for StreamVec<'scope, u64, Records> {
    fn adaptive_covariance(
        self,
        setup: CovarianceSetup,
        fault: Fault,
    ) -> StreamVec<'scope, u64, WindowCovariance> {
        let windows = Windows {
            columns: setup.bounds.len(),
            keys: setup.keys,
            first_epoch: 1,
            checkpoint_interval: u64::MAX,
        };
        windows.answers_until(self, setup.horizon, "AdaptiveCovariance", fault, move |epoch, key, records| {
            setup.window(epoch, key, records)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Epochs;
    use std::sync::{Mutex, mpsc};
    use timely::dataflow::operators::{Inspect, vec::ToStream};

    const WEATHER: &str = include_str!("../../examples/data/weather_nyc2013.csv");
    const COLUMNS: [&str; 4] = ["temp", "dewp", "humid", "pressure"];

    fn setup() -> CovarianceSetup {
        CovarianceSetup {
            method: Method::Pace,
            centre: Some(0.1),
            rho: Rho::new(0.5).expect("a rho"),
            neighbours: Neighbours::ReplaceOneInPlace,
            bounds: vec![(0.0, 110.0), (-20.0, 80.0), (0.0, 100.0), (980.0, 1050.0)],
            keys: 4,
            horizon: 5,
            source: NoiseSource::Seeded(11),
        }
    }

    /// The first 4000 rows of weather: three stations, one key without records, epochs of 1000
    /// rows, and an empty last epoch.
    fn weather() -> Records {
        let mut lines = WEATHER.lines();
        let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
        let place = |name: &str| header.iter().position(|column| *column == name).expect("a column");
        let (station, columns) = (place("station"), COLUMNS.map(place));
        let mut records = Records::default();
        for (row, line) in lines.take(4000).enumerate() {
            let fields: Vec<&str> = line.split(',').collect();
            let key = ["EWR", "JFK", "LGA"].iter().position(|name| *name == fields[station]);
            records.keys.push(key.expect("a station") as u32);
            records.epochs.push(1 + row as u64 / 1000);
            records.values.extend(columns.map(|column| fields[column].parse().unwrap_or(f64::NAN)));
        }
        records
    }

    fn run(workers: usize) -> Vec<WindowCovariance> {
        let (sender, receiver) = mpsc::channel();
        let sender = Mutex::new(sender);
        let guards = timely::execute(timely::Config::process(workers), move |worker| {
            let seen = sender.lock().expect("no panic").clone();
            let records = if worker.index() == 0 { vec![weather()] } else { Vec::new() };
            worker.dataflow::<u64, _, _>(|scope| {
                let records = records.to_stream(scope).container::<Vec<_>>().epochs();
                let windows = records.adaptive_covariance(setup(), Fault::new());
                windows.inspect(move |window| seen.send(window.clone()).expect("heard"));
            });
        })
        .expect("workers");
        drop(guards);
        let mut windows: Vec<WindowCovariance> = receiver.iter().collect();
        windows.sort_by_key(|window| (window.epoch, window.key));
        windows
    }

    #[test]
    fn windows_are_what_the_library_makes_of_the_same_rows() {
        let records = weather();
        let mut expected = Vec::new();
        for (epoch, key) in (1..=5).flat_map(|epoch| (0..4).map(move |key| (epoch, key))) {
            let of_window = records.keys.iter().zip(&records.epochs).zip(records.values.chunks(4));
            let rows =
                of_window.filter(|(window, _)| *window == (&key, &epoch)).flat_map(|(_, row)| row.to_vec());
            expected.push(setup().window(epoch, key, &rows.collect::<Vec<f64>>()).expect("noise"));
        }
        assert!(expected[0].estimate.is_ok());
        assert_eq!(expected[3].estimate, Err(CovarianceError::TooFew { found: 0 }), "a key without records");
        assert!(expected[16..].iter().all(|window| window.estimate.is_err()), "an epoch without records");
        for workers in [1, 2] {
            assert_eq!(run(workers), expected, "{workers} workers");
        }
    }
}
