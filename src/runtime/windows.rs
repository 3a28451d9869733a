//! The dataflow of a pipeline that releases estimates of windows, and what stands beside it.
//!
//! An epoch that is committed is never estimated again: its lines are in the log. One that is not was seen by nobody, and its
//! records are read again from where the last committed epoch says. A window leaves nothing behind, so there is nothing to
//! restore.
//!
//! An estimate may take minutes. A run that is stopped gives it up ([`stopping`](super::stopping)): the next run makes it.

use std::sync::Arc;

use crossbeam::channel::Sender;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_operators::{Commit, CommitLog, Epochs, ReleaseWindows, Released};
use serde_json::{Map, Value};
use timely::dataflow::operators::vec::Map as _;
use timely::dataflow::operators::{Inspect, Probe};
use timely::worker::Worker;
use zeroize::Zeroizing;

use super::feed::source;
use super::journal::{Journal, Mark, Stamps, Start};
use super::standings::Standings;
use super::stopping::{show, until_stopped};
use super::{CHECKPOINT_INTERVAL, Content, RunError, Running};
use crate::estimates::WindowPublication;
use crate::ledger::Charge;
use crate::pipeline::PublicParameters;
use crate::publication::PublicationError;
use crate::state::{PublicHeader, PublicReader, Recovered, Stamp};

/// What was found in the window of one key and epoch.
#[derive(Clone, Debug)]
pub struct WindowOutput {
    /// The epoch.
    pub epoch: u64,
    /// The key.
    pub key: u32,
    /// The fields of its line.
    pub found: Map<String, Value>,
    /// The run and the history of the release behind it.
    pub stamp: Stamp,
}

/// Estimates of windows.
pub(super) struct WindowEstimates {
    pub(super) publication: WindowPublication,
    pub(super) outputs: Sender<WindowOutput>,
}

impl Content for WindowEstimates {
    const ANSWERS_SLOWLY: bool = true;

    type Audience = (Stamps, Sender<WindowOutput>);

    fn parameters(&self) -> &PublicParameters {
        self.publication.parameters()
    }

    fn header(&self) -> Result<PublicHeader, PublicationError> {
        self.publication.header()
    }

    fn charge(&self) -> Result<Charge, PublicationError> {
        Ok(self.publication.charge())
    }

    fn recover(
        &self,
        mut recovered: Recovered,
        _noise: NoiseSource,
    ) -> Result<(Start, Option<Standings>), RunError> {
        let kept = recovered.checkpoint.map_or(0, |checkpoint| checkpoint.epoch);
        let committed = recovered.replay.try_fold(kept, |_, frame| frame.map(|frame| frame.epoch))?;
        Ok((Start::after(committed), None))
    }

    fn audience(
        &self,
        journal: &mut Journal,
        _releases: PublicReader,
        _committed: u64,
    ) -> Result<Self::Audience, RunError> {
        Ok((journal.stamps(), self.outputs.clone()))
    }

    fn build(&self, worker: &mut Worker, run: Running<'_>, lead: Option<(Journal, Self::Audience)>) {
        let Running { noise, feed, fault, control, start, committed, last } = run;
        let asked = match self.publication.asked(noise) {
            Ok(asked) => Arc::new(asked),
            Err(error) => return fault.raise(error),
        };
        let (log, mut audience) = lead.unzip();
        let log = log.map(|journal| Box::new(journal) as Box<dyn CommitLog<Mark>>);
        let (publication, first_epoch, number) = (&self.publication, start.first_epoch, worker.index());
        let (asking, reading) = (Arc::new(publication.clone()), publication.clone());
        let (control, watched) = (control.clone(), control.clone());
        let windows = publication.windows(first_epoch, CHECKPOINT_INTERVAL);
        worker.dataflow::<u64, _, _>(|scope| {
            let sources = source(scope, feed, number, first_epoch, committed.clone(), fault.clone());
            let unreadable = fault.clone();
            sources
                .records
                .epochs()
                .release_windows(sources.ends, &windows, fault.clone(), move |epoch, key, rows| {
                    let (asking, asked) = (Arc::clone(&asking), Arc::clone(&asked));
                    let rows = Zeroizing::new(rows.to_vec());
                    until_stopped(&control, move || asking.line(&asked, epoch, key, &rows))
                })
                .commit(sources.marks.map(Mark::Resume), &windows, log, fault.clone())
                .inspect(move |released| {
                    last.set(released.epoch + 1);
                    let Some((stamps, outputs)) = &mut audience else { return };
                    let show = |output| show(outputs, output, &watched, &unreadable);
                    if let Err(error) = tell(&reading, released, stamps, show) {
                        unreadable.raise(error);
                    }
                })
                .probe_with(committed);
        });
    }
}

/// Sends what was committed to those who look on.
fn tell(
    publication: &WindowPublication,
    released: &Released,
    stamps: &mut Stamps,
    mut show: impl FnMut(WindowOutput),
) -> Result<(), RunError> {
    let epoch = released.epoch;
    let stamp = stamps.of(epoch).ok_or(RunError::NoEstimate)?;
    let lines = publication.read(&released.values.to_vec()).ok_or(RunError::NoEstimate)?;
    for (key, found) in (0..).zip(lines) {
        show(WindowOutput { epoch, key, found, stamp });
    }
    Ok(())
}
