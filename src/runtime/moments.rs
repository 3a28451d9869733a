//! The dataflow of a pipeline that releases moments, and what stands beside it.

use crossbeam::channel::Sender;
use hushflow_mechanism::noise::NoiseSource;
use hushflow_mechanism::view::View;
use hushflow_operators::{
    Accumulate, Bound, Clip, Commit, CommitLog, Densities, Epochs, Measurement, Release, Views,
};
use timely::dataflow::operators::vec::Map;
use timely::dataflow::operators::{Concat, Inspect, Probe};
use timely::worker::Worker;

use super::feed::source;
use super::journal::{Journal, Mark, Stamps, Start};
use super::standings::Standings;
use super::stopping::show;
use super::{CHECKPOINT_INTERVAL, Content, Output, RunError, Running};
use crate::ledger::Charge;
use crate::pipeline::{self, PublicParameters};
use crate::publication::{Publication, PublicationError};
use crate::state::{PublicHeader, PublicReader, Recovered};
use crate::totals::Totals;

/// Moments, and the views of them.
pub(super) struct Moments {
    pub(super) publication: Publication,
    pub(super) views: Vec<pipeline::View>,
    pub(super) outputs: Sender<Output>,
}

impl Content for Moments {
    type Audience = (Vec<(View, Stamps)>, Sender<Output>);

    fn parameters(&self) -> &PublicParameters {
        self.publication.parameters()
    }

    fn header(&self) -> Result<PublicHeader, PublicationError> {
        self.publication.header()
    }

    fn charge(&self) -> Result<Charge, PublicationError> {
        Charge::of(&self.publication)
    }

    fn recover(
        &self,
        recovered: Recovered,
        noise: NoiseSource,
    ) -> Result<(Start, Option<Standings>), RunError> {
        Start::recover(&self.publication, recovered, noise)
    }

    fn audience(
        &self,
        journal: &mut Journal,
        mut releases: PublicReader,
        committed: u64,
    ) -> Result<Self::Audience, RunError> {
        let view =
            |view: &pipeline::View| self.publication.view(&view.workload).with_square_bias(view.squares);
        let mut views: Vec<View> = self.views.iter().map(view).collect();
        for _ in 0..committed {
            let release = releases.next_frame()?.ok_or(RunError::Checkpoint)?;
            for view in &mut views {
                view.push(&release.values)?.for_each(drop);
            }
        }
        let views = views.into_iter().map(|view| (view, journal.stamps())).collect();
        Ok((views, self.outputs.clone()))
    }

    fn build(&self, worker: &mut Worker, run: Running<'_>, lead: Option<(Journal, Self::Audience)>) {
        // All processes release with the noise and the strategy of the log.
        let publication = match run.start.calibration.clone() {
            Some(calibration) => self.publication.clone().with_calibration(calibration),
            None => return run.fault.raise(RunError::Checkpoint),
        };
        let measured = publication.and_then(|publication| {
            let measurement = publication.measurement(run.noise)?;
            let measurement = measurement
                .checkpoint_interval(CHECKPOINT_INTERVAL)
                .resume(run.start.first_epoch, run.start.states.clone())
                .standings(run.start.standings.clone());
            Ok((measurement.build()?, publication))
        });
        match measured {
            Ok((measurement, publication)) => self.build_of(&publication, &measurement, worker, run, lead),
            Err(error) => run.fault.raise(error),
        }
    }
}

impl Moments {
    fn build_of(
        &self,
        publication: &Publication,
        measurement: &Measurement,
        worker: &mut Worker,
        run: Running<'_>,
        lead: Option<(Journal, <Self as Content>::Audience)>,
    ) {
        let Running { feed, fault, control, start, committed, last, .. } = run;
        let (log, views) = lead.unzip();
        let log = log.map(|journal| Box::new(journal) as Box<dyn CommitLog<Mark>>);
        let (number, first_epoch) = (worker.index(), start.first_epoch);
        let has_entities = publication.parameters().entity.is_some();
        worker.dataflow::<u64, _, _>(|scope| {
            let sources = source(scope, feed, number, first_epoch, committed.clone(), fault.clone());
            let (records, mut marks) = (sources.records.epochs(), sources.marks.map(Mark::Resume));
            // The same on every worker: it follows from public parameters.
            let clipped = if has_entities {
                let bounded = records.bound(measurement, fault.clone());
                marks = marks.concat(bounded.admitted.map(Mark::Admitted));
                bounded.records.clip(measurement, fault.clone())
            } else {
                records.clip(measurement, fault.clone())
            };
            let released = clipped
                .accumulate(measurement, fault.clone())
                .release(sources.ends, measurement, fault.clone())
                .commit(marks, measurement, log, fault.clone())
                .inspect(move |released| last.set(released.epoch + 1))
                .probe_with(committed);
            // Every worker builds the same dataflow; views see something on the first alone.
            let (views, outputs) = views.unzip();
            let mut views = views.into_iter().flatten();
            for (view, shown) in self.views.iter().enumerate() {
                let mut totals = Totals::of(publication, shown.total);
                let projection = shown.covariance;
                let (outputs, control, ended) = (outputs.clone(), control.clone(), fault.clone());
                let (moments, mut stamps) = views.next().unzip();
                released
                    .clone()
                    .view(|| moments.expect("releases come to the lead alone"), fault.clone())
                    .flat_map(move |moments| totals.push(moments))
                    .density_by(projection)
                    .inspect(move |estimated| {
                        let stamp = stamps.as_mut().and_then(|stamps| stamps.of(estimated.moments.epoch));
                        if let (Some(outputs), Some(stamp)) = (&outputs, stamp) {
                            let output = Output { view, estimated: estimated.clone(), stamp };
                            show(outputs, output, &control, &ended);
                        }
                    });
            }
        });
    }
}
