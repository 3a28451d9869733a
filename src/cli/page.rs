//! The log as a page, for `hushflow tail --web` and `hushflow serve`.

use std::io::{Write, stderr};
use std::path::PathBuf;

use hushflow::follow::Subject;
use hushflow::mechanism::workload::Workload;
use hushflow::publication::Publication;
use hushflow::state::PublicReader;
use hushflow::web::{Page, Site};

use super::{CliError, ledger};

/// The page of a log. The first of the wanted keys is shown first, or the total.
///
/// # Errors
/// The log holds no moments.
pub(super) fn site(
    directory: PathBuf,
    subject: &Subject,
    workloads: &[Workload],
    wanted: &[u32],
) -> Result<Site, CliError> {
    let Publication::Moments(publication) = &subject.publication else {
        return Err(CliError::usage("this log holds estimates of windows, of which there is no page yet"));
    };
    let view = subject
        .views
        .first()
        .cloned()
        .ok_or_else(|| CliError::usage("a page begins with a view: name one"))?;
    let ledger = {
        let directory = directory.clone();
        Box::new(move || ledger::public_account(&directory))
    };
    let key = if view.total { publication.keys() } else { wanted.first().copied().unwrap_or(0) };
    let released = &publication.parameters().release.workload;
    let workloads = workloads.iter().chain([released]).cloned().collect();
    Ok(Site { directory, publication: publication.clone(), view, workloads, key, ledger })
}

/// A page that is served, and how far its log is known to go.
pub(super) struct Served {
    page: Page,
    reader: PublicReader,
}

impl Served {
    /// Serves the page at `address`.
    ///
    /// # Errors
    /// The address can't be listened at, or the log can't be read.
    pub(super) fn begin(address: &str, site: Site, reader: PublicReader) -> Result<Self, CliError> {
        let mut served = Served { page: Page::serve(site, address)?, reader };
        served.read_on()?;
        let at = served.page.address();
        let _ = writeln!(stderr(), "http://{at}/ shows the log until this command is ended");
        Ok(served)
    }

    /// Finds out how far the log goes by now.
    ///
    /// # Errors
    /// The log can't be read.
    pub(super) fn read_on(&mut self) -> Result<(), CliError> {
        while let Some(release) = self.reader.next_frame()? {
            self.page.tell_published(release.epoch);
        }
        Ok(())
    }
}
