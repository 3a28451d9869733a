//! Checks a state directory without changing it, and reports its contents and the first problem.

use super::{
    StateSettings,
    anchor::{self, Anchor},
    chain::{ChainLink, LogHead},
    checkpoint::CheckpointSlot,
    enrolment::ENROLMENT,
    entities::{ListDamage, is_list, list_name},
    error::StateError,
    frames::SourcePosition,
    public_log::PublicTail,
    reader::PublicReader,
    recovery::{StateFacts, decide},
    storage::{CHECKPOINTS, DirectoryStorage, PRIVATE_LOG, PUBLIC_LOG, Storage},
    survey::Survey,
};
use std::path::Path;

/// Result of [`verify`]. Unless `problem` says otherwise, all checksums, the order of epochs and
/// generations, and the equality of the headers are correct, and the public log is the projection
/// of the private one.
#[derive(Debug)]
pub struct StateReport {
    /// Number of runs that have written here.
    pub generations: u64,
    /// Number of committed epochs.
    pub committed: u64,
    /// The link of the last committed epoch: the head of the chain.
    pub chain: ChainLink,
    /// The first epoch whose exact sums are still in the private log.
    pub sums_from: u64,
    /// Epochs in the public log that agree with the private one. If fewer than committed, the
    /// current or next run publishes the rest.
    pub published: u64,
    /// The epochs of the intact checkpoints, oldest first.
    pub checkpoints: Vec<u64>,
    /// The source positions of the last committed epoch.
    pub positions: Vec<SourcePosition>,
    /// Bytes after the last readable frame of the private log: a commit that was cut short or is
    /// being written.
    pub uncommitted_bytes: u64,
    /// The first problem found.
    pub problem: Option<StateError>,
}

/// Checks the state directory at `path`. Sums never leave this function. Takes no lock: a run may
/// be at work.
///
/// # Errors
/// If the directory itself can't be opened. Problems inside are in the report.
pub fn verify(path: impl AsRef<Path>) -> Result<StateReport, StateError> {
    verify_with(path, &StateSettings::default())
}

/// Checks as [`verify`] does, for a directory kept with these settings: also the separate public
/// log and the anchor, if there are any.
///
/// # Errors
/// If the state directory or that of the public log can't be opened. Problems inside, or with the
/// anchor, are in the report.
pub fn verify_with(path: impl AsRef<Path>, settings: &StateSettings) -> Result<StateReport, StateError> {
    let storage = DirectoryStorage::shared(path.as_ref())?.published_in(settings.public.as_deref())?;
    let open_anchor = |path: &Path| {
        let fingerprint = fingerprint(&storage)?;
        Ok((anchor::open_shared(path, fingerprint)?, fingerprint))
    };
    Ok(report(&storage, settings.anchor.as_deref().map(open_anchor).transpose()))
}

/// Result of [`verify_public`] for a public log alone.
#[derive(Debug)]
pub struct PublicReport {
    /// Number of the run that drew the last release.
    pub generation: u64,
    /// Number of releases in the log.
    pub published: u64,
    /// The link of the last release: the head of the chain.
    pub chain: ChainLink,
    /// The first problem found.
    pub problem: Option<StateError>,
}

/// Checks the public log in the directory at `path` alone: all checksums, the order of epochs and
/// generations, and the chain. Only the state directory can show whether its releases were
/// committed.
///
/// # Errors
/// If there is no log.
pub fn verify_public(path: impl AsRef<Path>) -> Result<PublicReport, StateError> {
    let mut reader = PublicReader::open(path)?;
    let problem = loop {
        match reader.next_frame() {
            Ok(Some(_)) => {}
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let LogHead { generation, epoch, link } = reader.head();
    Ok(PublicReport { generation, published: epoch, chain: link, problem })
}

/// Returns whether the directory at `path` holds only a public log and no other file of a state
/// directory.
///
/// # Errors
/// If it can't be opened.
pub fn is_public_alone(path: impl AsRef<Path>) -> Result<bool, StateError> {
    let names = DirectoryStorage::shared(path.as_ref())?.names()?;
    let private = |name: &String| {
        name.starts_with("private")
            || CHECKPOINTS.contains(&name.as_str())
            || is_list(name)
            || name == ENROLMENT.name
    };
    Ok(names.iter().any(|name| name == PUBLIC_LOG) && !names.iter().any(private))
}

#[cfg(test)]
pub(super) fn verify_storage(storage: &dyn Storage, anchor: Option<Box<dyn Storage>>) -> StateReport {
    report(storage, anchor.map(|anchor| Ok((anchor, fingerprint(storage)?))).transpose())
}

/// An anchor's storage and the fingerprint of its log.
type AnchorStorage = (Box<dyn Storage>, ChainLink);

fn report(storage: &dyn Storage, anchor: Result<Option<AnchorStorage>, StateError>) -> StateReport {
    let mut survey = Survey::new(None);
    // Read the anchor first: the log of an active run may grow meanwhile, but never shrinks.
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
    let StateFacts { private, public, checkpoints, .. } = &survey.facts;
    let mut epochs: Vec<u64> = checkpoints.iter().filter_map(epoch_of).collect();
    epochs.sort_unstable();
    StateReport {
        generations: private.head.generation,
        committed: private.head.epoch,
        chain: private.head.link,
        sums_from: private.base() + 1,
        published: public.epoch,
        checkpoints: epochs,
        uncommitted_bytes: private.length - private.end,
        positions: survey.positions,
        problem,
    }
}

fn fingerprint(storage: &dyn Storage) -> Result<ChainLink, StateError> {
    PublicReader::of(storage.reader()?)?.header().fingerprint()
}

fn epoch_of(slot: &CheckpointSlot) -> Option<u64> {
    match slot {
        CheckpointSlot::Intact { epoch, .. } => Some(*epoch),
        _ => None,
    }
}

fn judge(directory: &Path, facts: &StateFacts) -> Result<(), StateError> {
    let own_header = facts.private.header.as_deref();
    decide(directory, facts, own_header.unwrap_or_default())?;
    if own_header.is_none() {
        return Err(StateError::Missing { path: directory.join(PRIVATE_LOG) });
    }
    // A start rebuilds or ignores the bytes that follow, but the report names them.
    if facts.public.rest == PublicTail::Unreadable {
        let damage =
            "the frame fails its checksum; the next run rebuilds the rest of the file from the private log";
        return Err(StateError::Damaged {
            path: facts.public_log.clone(),
            offset: facts.public.matched,
            damage,
        });
    }
    for (slot, name) in facts.checkpoints.iter().zip(CHECKPOINTS) {
        let CheckpointSlot::Unreadable { list } = slot else { continue };
        return Err(match *list {
            Some(ListDamage { number, offset, damage }) => {
                StateError::Damaged { path: directory.join(list_name(number)), offset, damage }
            }
            None => StateError::Damaged {
                path: directory.join(name),
                offset: 0,
                damage: "the checkpoint fails its checksum; runs use the other one, or replay the log",
            },
        });
    }
    Ok(())
}
