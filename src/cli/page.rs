//! Web page of a log, for `hushflow tail --web` and `hushflow serve`.

use std::io::{Write, stderr};
use std::path::PathBuf;

use hushflow::follow::Subject;
use hushflow::mechanism::workload::Workload;
use hushflow::publication::Publication;
use hushflow::state::PublicReader;
use hushflow::web::{Page, Site};

use super::{CliError, ledger};

/// Returns the page of a log, which opens with the first wanted key, or with the total.
///
/// # Errors
/// Fails if the log holds no moments.
pub(super) fn site(
    directory: PathBuf,
    subject: &Subject,
    workloads: &[Workload],
    wanted: &[u32],
) -> Result<Site, CliError> {
    let Publication::Moments(publication) = &subject.publication else {
        return Err(CliError::usage(
            "this log holds estimates of windows, and pages show only moments: use tail without --web",
        ));
    };
    let view =
        subject.views.first().cloned().ok_or_else(|| CliError::usage("a page needs a view: name one"))?;
    let ledger = {
        let directory = directory.clone();
        Box::new(move || ledger::public_account(&directory))
    };
    let key = if view.total { publication.keys() } else { wanted.first().copied().unwrap_or(0) };
    let released = &publication.parameters().release.workload;
    let workloads = workloads.iter().chain([released]).cloned().collect();
    Ok(Site { directory, publication: publication.clone(), view, workloads, key, ledger })
}

/// A page with the reader that watches its log for new epochs.
pub(super) struct Served {
    page: Page,
    reader: PublicReader,
}

impl Served {
    /// Serves the page at `address`.
    ///
    /// # Errors
    /// Fails if the address can't be bound or the log can't be read.
    pub(super) fn begin(address: &str, site: Site, reader: PublicReader) -> Result<Self, CliError> {
        let mut served = Served { page: Page::serve(site, address)?, reader };
        served.read_on()?;
        let at = served.page.address();
        let _ = writeln!(stderr(), "http://{at}/ serves the log until this command is stopped");
        Ok(served)
    }

    /// Reads new epochs of the log and reports them to the page.
    ///
    /// # Errors
    /// Fails if the log can't be read.
    pub(super) fn read_on(&mut self) -> Result<(), CliError> {
        while let Some(release) = self.reader.next_frame()? {
            self.page.tell_published(release.epoch);
        }
        Ok(())
    }
}
