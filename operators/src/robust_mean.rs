//! `robust_mean`: the private and robust mean of every key in every epoch, over tumbling windows.
//!
//! Each row is in one window, so all windows together cost as much as one (parallel composition).
//! The number of rows in a window is public, as the estimator requires. Every declared key gets an
//! answer in every epoch. Without rows the answer is the reason why there is no mean.

use crate::windows::Windows;
use crate::{Fault, Records};
use hushflow_estimators::mean::{Answer, MeanError, Question, estimate};
use hushflow_mechanism::noise::NoiseSource;
use timely::dataflow::StreamVec;

/// Parameters of every window.
#[derive(Clone, Debug)]
pub struct MeanSetup {
    /// The estimate to compute. Its (ε, δ) holds for each window, and for all of them together.
    pub question: Question,
    /// Columns of a record.
    pub columns: usize,
    /// Number of keys. Keys are numbered from 0. A record of another key raises the fault.
    pub keys: u32,
    /// Number of epochs. Epochs are numbered from 1.
    pub epochs: u64,
    /// Source of noise. The generator of a window is that of its (epoch, key).
    pub source: NoiseSource,
}

impl MeanSetup {
    /// Returns the answer for these rows of a key in an epoch. A command on the same rows gives the
    /// same result.
    ///
    /// # Errors
    /// A reason if the operating system has no entropy. Then nothing may be released.
    pub fn window(&self, epoch: u64, key: u32, rows: &[f64]) -> Result<WindowMean, String> {
        let generator = self.source.generator(epoch, u64::from(key));
        let mut generator = generator.map_err(|error| error.to_string())?;
        let answer = estimate(rows, self.columns, &self.question, &mut generator);
        Ok(WindowMean { key, epoch, rows: rows.len() / self.columns.max(1), answer })
    }
}

/// The answer of one window.
#[derive(Clone, Debug)]
pub struct WindowMean {
    /// Its key.
    pub key: u32,
    /// Its epoch.
    pub epoch: u64,
    /// Its public number of rows.
    pub rows: usize,
    /// The answer, or the reason why this number of rows allows none.
    pub answer: Result<Answer, MeanError>,
}

/// Estimates means.
pub trait RobustMeans<'scope> {
    /// Returns the mean of every key at every epoch, from 1 to the last. Records must be at the
    /// time of their [`Epochs`](crate::Epochs).
    fn robust_mean(self, setup: MeanSetup, fault: Fault) -> StreamVec<'scope, u64, WindowMean>;
}

impl<'scope> RobustMeans<'scope> for StreamVec<'scope, u64, Records> {
    fn robust_mean(self, setup: MeanSetup, fault: Fault) -> StreamVec<'scope, u64, WindowMean> {
        let MeanSetup { columns, keys, epochs, .. } = setup;
        let windows = Windows { columns, keys, first_epoch: 1, checkpoint_interval: u64::MAX };
        windows.answers_until(self, epochs, "RobustMean", fault, move |epoch, key, rows| {
            setup.window(epoch, key, rows)
        })
    }
}
