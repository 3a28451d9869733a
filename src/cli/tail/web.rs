//! `hushflow tail --web`: the log as a page.

use std::io::{Write, stderr};
use std::path::PathBuf;
use std::thread::sleep;

use hushflow::follow::Subject;
use hushflow::mechanism::workload::Workload;
use hushflow::publication::Publication;
use hushflow::state::PublicReader;
use hushflow::web::{Page, Site};

use super::super::{CliError, ledger};
use super::INTERVAL;

/// The page of a log. The first of the wanted keys is shown first, or the total.
///
/// # Errors
/// The log holds no moments.
pub(in super::super) fn site(
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

/// Serves the page for as long as the log can be read.
pub(super) fn serve(address: &str, site: Site, mut reader: PublicReader) -> Result<(), CliError> {
    let page = Page::serve(site, address)?;
    let mut told = false;
    loop {
        while let Some(release) = reader.next_frame()? {
            page.tell_published(release.epoch);
        }
        if !std::mem::replace(&mut told, true) {
            let _ =
                writeln!(stderr(), "http://{}/ shows the log until this command is ended", page.address());
        }
        sleep(INTERVAL);
    }
}
