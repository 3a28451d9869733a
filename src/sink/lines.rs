//! What is written of a log, as JSON lines: views of its moments, or the estimates of its windows.

use hushflow_mechanism::view::View as Weighted;
use hushflow_operators::Estimated;

use super::{Format, SinkError, WindowWriter, Writer};
use crate::estimates::WindowPublication;
use crate::pipeline::View;
use crate::publication::Publication;
use crate::runtime::WindowOutput;
use crate::state::ReleaseFrame;
use crate::totals::Totals;

/// What is written of a log.
#[derive(Clone)]
pub enum Subject {
    /// Views of moments.
    Moments(Publication, Vec<View>),
    /// Estimates of windows, as they are.
    Windows(WindowPublication),
}

impl Subject {
    /// Number of epochs.
    pub(super) fn horizon(&self) -> u64 {
        match self {
            Subject::Moments(publication, _) => publication.horizon(),
            Subject::Windows(publication) => publication.parameters().epochs.schedule.horizon(),
        }
    }
}

/// What makes lines of releases, one after the other from the first on.
pub(super) enum Lines {
    Moments(Vec<(View, Weighted, Totals, Writer)>),
    Windows(Box<(WindowPublication, WindowWriter)>),
}

impl Lines {
    pub(super) fn new(subject: &Subject) -> Self {
        match subject {
            Subject::Windows(publication) => {
                let writer = WindowWriter::new(publication.clone(), Format::Json);
                Lines::Windows(Box::new((publication.clone(), writer)))
            }
            Subject::Moments(publication, views) => {
                let made = |view: &View| {
                    let weighted = publication.view(&view.workload).with_square_bias(view.squares);
                    let writer =
                        Writer::new(publication.clone(), view.clone(), Format::Json, views.len() > 1);
                    (view.clone(), weighted, Totals::of(publication, view.total), writer)
                };
                Lines::Moments(views.iter().map(made).collect())
            }
        }
    }

    /// The lines of a release, each with its line end; none where it is not `wanted`, but views have to see it all the same.
    pub(super) fn of(&mut self, release: &ReleaseFrame, wanted: bool) -> Result<Vec<u8>, SinkError> {
        let mut lines = Vec::new();
        match self {
            Lines::Moments(views) => {
                for (view, weighted, totals, writer) in views {
                    let shown = weighted.push(&release.values)?.filter_map(|line| totals.push(line));
                    for moments in shown.filter(|_| wanted) {
                        let density = moments.noisy().density_by(view.covariance);
                        let estimated = Estimated { density, moments };
                        let written = writer.write(&estimated, &release.stamp(), &mut lines);
                        written.expect("memory takes every line");
                    }
                }
            }
            Lines::Windows(windows) if wanted => {
                let (publication, writer) = &mut **windows;
                let epoch = release.epoch;
                let found = publication.read(&release.values).ok_or(SinkError::NoEstimates { epoch })?;
                for (key, found) in (0..).zip(found) {
                    let output = WindowOutput { epoch, key, found, stamp: release.stamp() };
                    writer.write(&output, &mut lines).expect("memory takes every line");
                }
            }
            Lines::Windows(..) => {}
        }
        Ok(lines)
    }
}
