//! Reads everything, changes nothing, and says what is there and what is wrong with it.

use super::{
    Settings,
    anchor::{self, Anchor},
    chain::{Link, Standing},
    checkpoint::Slot,
    enrolment::ENROLMENT,
    error::StateError,
    frames::SourcePosition,
    public_log::Rest,
    reader::PublicReader,
    recovery::{Facts, decide},
    storage::{CHECKPOINTS, Directory, PRIVATE_LOG, PUBLIC_LOG, Storage},
    survey::Survey,
};
use std::path::Path;

/// What [`verify`] found. All checksums, the order of epochs and generations, the equality of the headers, and
/// that the public log is the projection of the private one, have been checked unless `problem` says otherwise.
#[derive(Debug)]
pub struct Report {
    /// Runs that have written here.
    pub generations: u64,
    /// Epochs committed.
    pub committed: u64,
    /// The link of the last of them: the head of the chain.
    pub chain: Link,
    /// The first epoch whose exact sums are still in the private log.
    pub sums_from: u64,
    /// Epochs in the public log that agree with the private one. Fewer than committed: the next run (or the one
    /// that is at work) publishes the rest.
    pub published: u64,
    /// The epochs of the intact checkpoints, oldest first.
    pub checkpoints: Vec<u64>,
    /// The source positions of the last committed epoch.
    pub positions: Vec<SourcePosition>,
    /// Bytes behind the last readable frame of the private log: a commit that was cut short or is being written.
    pub uncommitted_bytes: u64,
    /// The first problem found.
    pub problem: Option<StateError>,
}

/// Reads the state directory at `path`, whose sums never leave this function. Takes no lock: a run may be at work.
///
/// # Errors
/// When the directory itself can't be opened. What is wrong inside is in the report.
pub fn verify(path: impl AsRef<Path>) -> Result<Report, StateError> {
    verify_with(path, &Settings::default())
}

/// Verifies as [`verify`] does a directory that is kept with these settings: against the public log elsewhere if there is one, and
/// that it has come at least as far as its anchor, by the same way, if there is one.
///
/// # Errors
/// When the state directory or that of the public log can't be opened. What is wrong inside, or with the anchor, is in the
/// report.
pub fn verify_with(path: impl AsRef<Path>, settings: &Settings) -> Result<Report, StateError> {
    let storage = Directory::shared(path.as_ref())?.published_in(settings.public.as_deref())?;
    let look = |path: &Path| {
        let fingerprint = fingerprint(&storage)?;
        Ok((anchor::look(path, fingerprint)?, fingerprint))
    };
    Ok(report(&storage, settings.anchor.as_deref().map(look).transpose()))
}

/// What [`verify_public`] found in a public log by itself.
#[derive(Debug)]
pub struct PublicReport {
    /// The number of the run that drew the last release.
    pub generation: u64,
    /// Releases in the log.
    pub published: u64,
    /// The link of the last of them: the head of the chain.
    pub chain: Link,
    /// The first problem found.
    pub problem: Option<StateError>,
}

/// Reads the public log in the directory at `path` by itself: all checksums, the order of epochs and generations, and the chain.
/// Whether it shows what was committed only the state directory can tell.
///
/// # Errors
/// When there is no log.
pub fn verify_public(path: impl AsRef<Path>) -> Result<PublicReport, StateError> {
    let mut reader = PublicReader::open(path)?;
    let problem = loop {
        match reader.next_frame() {
            Ok(Some(_)) => {}
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let Standing { generation, epoch, link } = reader.standing();
    Ok(PublicReport { generation, published: epoch, chain: link, problem })
}

/// Whether the directory at `path` holds a public log and nothing of a state directory.
///
/// # Errors
/// When it can't be opened.
pub fn is_public_alone(path: impl AsRef<Path>) -> Result<bool, StateError> {
    let names = Directory::shared(path.as_ref())?.names()?;
    let private = |name: &String| {
        name.starts_with("private") || CHECKPOINTS.contains(&name.as_str()) || name == ENROLMENT.name
    };
    Ok(names.iter().any(|name| name == PUBLIC_LOG) && !names.iter().any(private))
}

#[cfg(test)]
pub(super) fn verify_storage(storage: &dyn Storage, anchor: Option<Box<dyn Storage>>) -> Report {
    report(storage, anchor.map(|anchor| Ok((anchor, fingerprint(storage)?))).transpose())
}

/// Where an anchor lives, and the fingerprint of the log that it should be of.
type Place = (Box<dyn Storage>, Link);

fn report(storage: &dyn Storage, anchor: Result<Option<Place>, StateError>) -> Report {
    let mut survey = Survey::new(None);
    // The anchor is read first: a run that is at work meanwhile is further by then, never behind.
    let anchored = anchor.and_then(|anchor| {
        let Some((anchor, fingerprint)) = anchor else { return Ok(None) };
        let anchor = Anchor::read_from(anchor, fingerprint)?;
        let missing = || StateError::NotAnchored { path: anchor.path() };
        anchor.anchored().ok_or_else(missing).map(Some)
    });
    let problem = anchored.and_then(|anchored| {
        survey.facts.anchored = anchored;
        survey.conduct(storage)?;
        judge(storage.path(), &survey.facts)
    });
    let problem = problem.err();
    let Facts { private, public, checkpoints, .. } = &survey.facts;
    let mut epochs: Vec<u64> = checkpoints.iter().filter_map(epoch_of).collect();
    epochs.sort_unstable();
    Report {
        generations: private.standing.generation,
        committed: private.standing.epoch,
        chain: private.standing.link,
        sums_from: private.base() + 1,
        published: public.epoch,
        checkpoints: epochs,
        uncommitted_bytes: private.length - private.end,
        positions: survey.positions,
        problem,
    }
}

fn fingerprint(storage: &dyn Storage) -> Result<Link, StateError> {
    PublicReader::of(storage.reader()?)?.header().fingerprint()
}

fn epoch_of(slot: &Slot) -> Option<u64> {
    match slot {
        Slot::Intact { epoch, .. } => Some(*epoch),
        _ => None,
    }
}

fn judge(directory: &Path, facts: &Facts) -> Result<(), StateError> {
    let own_header = facts.private.header.as_deref();
    decide(directory, facts, own_header.unwrap_or_default())?;
    if own_header.is_none() {
        return Err(StateError::Missing { path: directory.join(PRIVATE_LOG) });
    }
    // A start mends or does without what follows; whoever asks should still be told.
    if facts.public.rest == Rest::Unreadable {
        let what =
            "the frame fails its checksum; the next run rebuilds the rest of the file from the private log";
        return Err(StateError::Damaged {
            path: facts.public_log.clone(),
            offset: facts.public.matched,
            what,
        });
    }
    match facts.checkpoints.iter().position(|slot| *slot == Slot::Unreadable) {
        Some(place) => Err(StateError::Damaged {
            path: directory.join(CHECKPOINTS[place]),
            offset: 0,
            what: "the checkpoint fails its checksum; runs use the other one, or replay the log",
        }),
        None => Ok(()),
    }
}
