//! `robust_mean`: the private and robust mean of every key in every epoch, over tumbling windows.
//!
//! Each row is in one window, so all windows together cost what one does (parallel composition); the numbers of rows of windows
//! are public, as the estimator asks. Every declared key answers for every epoch, also where it has no rows: then by a
//! reason.

use crate::windows::Windows;
use crate::{Fault, Records};
use hushflow_estimators::mean::{Answer, Question, estimate};
use hushflow_mechanism::noise::NoiseSource;
use timely::dataflow::StreamVec;

/// What is asked of every window.
#[derive(Clone, Debug)]
pub struct MeanSetup {
    /// The question; its (ε, δ) is that of each window, and of all of them.
    pub question: Question,
    /// Columns of a record.
    pub columns: usize,
    /// Keys that answer, from 0; a record of another key raises the fault.
    pub keys: u32,
    /// Epochs that answer, from 1.
    pub epochs: u64,
    /// Where noise comes from: the generator of a window is that of its (epoch, key).
    pub source: NoiseSource,
}

impl MeanSetup {
    /// The answer for these rows, one after the other, as those of a key in an epoch: what a command on the same rows gives.
    ///
    /// # Errors
    /// The reason, where the operating system has no entropy: then nothing may be released.
    pub fn window(&self, epoch: u64, key: u32, rows: &[f64]) -> Result<WindowMean, String> {
        let generator = self.source.generator(epoch, u64::from(key));
        let mut generator = generator.map_err(|error| error.to_string())?;
        let answer = estimate(rows, self.columns, &self.question, &mut generator);
        let answer = answer.map_err(|error| error.to_string());
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
    /// Its rows: public.
    pub rows: usize,
    /// What was found, or why nothing can be asked of so many rows.
    pub answer: Result<Answer, String>,
}

/// Estimates means.
pub trait RobustMeans<'scope> {
    /// The mean of every key at every epoch, from 1 to the last, of records that were brought to their [`Epochs`](crate::Epochs).
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
