//! Carries out a recovery plan: repairs the logs and continues them.

use super::{
    error::StateError,
    format::FileRole,
    frames::{PublicHeader, SegmentPayload},
    log::{self, FrameAppender},
    private_log::{PrivateFacts, Replay, beginning, generation_frame},
    recovery::RecoveryPlan,
    segments::begin_segment,
    storage::{PUBLIC_LOG, Storage, StorageFile, segment_name},
    survey::Survey,
};
use zeroize::Zeroizing;

/// Repairs the private log as planned and begins the new generation, synced before anything else is
/// written.
pub(super) fn resume_private(
    storage: &dyn Storage,
    plan: &RecoveryPlan,
    facts: &PrivateFacts,
    header: &PublicHeader,
) -> Result<FrameAppender, StateError> {
    let mut log = match plan.keep_private {
        0 => begin_segment(storage, header, &SegmentPayload::first(header, storage.now())?)?,
        keep => repair(storage, &segment_name(facts.end().segment), facts.length, keep, plan.rewrite_from)?,
    };
    log.append(&generation_frame(plan.generation, log.synced())?)?;
    log.sync()?;
    Ok(log)
}

/// Cuts the torn tail of a segment and makes the rest durable.
fn repair(
    storage: &dyn Storage,
    name: &str,
    length: u64,
    keep: u64,
    rewrite_from: u64,
) -> Result<FrameAppender, StateError> {
    let file = storage.write(name)?;
    if length > keep {
        file.truncate(keep)?;
    }
    rewrite(&*file, rewrite_from, keep)?;
    file.sync()?;
    storage.sync()?;
    Ok(FrameAppender::at(file, keep))
}

/// Writes the bytes `from..end` once more. After a failed sync the system may hold these bytes only
/// in memory and report the next sync as a success; bytes written again are synced again.
pub(super) fn rewrite(file: &dyn StorageFile, mut from: u64, end: u64) -> Result<(), StateError> {
    let mut window = Zeroizing::new(vec![0; 1 << 16]);
    while from < end {
        let wanted = window.len().min((end - from) as usize);
        let filled = file.read_at(from, &mut window[..wanted])?;
        if filled == 0 {
            return Err(log::damaged(file, from, "the file has become shorter than what was read of it"));
        }
        file.write_at(from, &window[..filled])?;
        from += filled as u64;
    }
    Ok(())
}

/// Repairs the public log as planned and appends the missing releases.
pub(super) fn resume_public(
    storage: &dyn Storage,
    plan: &RecoveryPlan,
    survey: &Survey,
    header: &PublicHeader,
    unpublished: Replay,
) -> Result<FrameAppender, StateError> {
    let file = storage.write(PUBLIC_LOG)?;
    if survey.facts.public.length > plan.keep_public {
        file.truncate(plan.keep_public)?;
    }
    // Segments are removed only after this file's next sync, so that sync must cover these bytes.
    rewrite(&*file, survey.public_unproven, plan.keep_public)?;
    let mut log = FrameAppender::at(file, plan.keep_public);
    if plan.keep_public == 0 {
        log.append(&beginning(FileRole::PublicLog, header, None)?)?;
    }
    unpublished.for_each_packed(|epoch, link| log.append(&epoch.release().frame(link)?))?;
    Ok(log)
}
